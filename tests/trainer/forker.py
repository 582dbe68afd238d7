"""Forks nodes, as importing torch takes each process seconds. A line of JSON is asked, and one answered:

["start", LOG, ENVIRONMENT, SCRIPT, ARGUMENTS...]    the number of a new process
["poll", NUMBER]                                     its exit code, null while it runs
"""

import ctypes
import gc
import importlib
import json
import os
import sys

import dying  # noqa: F401
import elastic_lighthouse  # noqa: F401
import elastic_node  # noqa: F401
import losses  # noqa: F401
import node  # noqa: F401
import resumable  # noqa: F401
import scenarios
import soak_node  # noqa: F401
import torch
import trouble  # noqa: F401
import walk  # noqa: F401


def main() -> None:
    torch.optim.SGD(scenarios.Linear(torch.float64).parameters(), lr=1.0)  # the first one imports half of torch
    scenarios.problem(2)
    gc.collect()
    gc.freeze()  # or every node would look through all of torch for garbage, and have a copy of it by that
    for line in sys.stdin:
        word, *told = json.loads(line)
        if word == "start":
            answer = os.fork()
            if answer == 0:
                become(*told)
                return
        else:
            process, status = os.waitpid(told[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if process else None
        print(json.dumps(answer), flush=True)


def become(log: str, environment: dict[str, str], script: str, *arguments: str) -> None:
    """The rest of the process is the script's, its end included."""
    os.environ.update(environment)
    if "NETNS" in environment:
        with open(f"/run/netns/{environment['NETNS']}") as host:
            if ctypes.CDLL(None, use_errno=True).setns(host.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
    with open(os.devnull) as nothing, open(log, "w") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    importlib.import_module(script).main(*arguments)


main()
