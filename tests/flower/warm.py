"""Starts ClientApps by a fork: each message starts one, and importing torch anew would take the tests' time.

python warm.py SOCKET                 imports everything once, and waits
python warm.py SOCKET ARGUMENTS...    in place of flwr-clientapp ARGUMENTS: has a fork of it do that
"""

import json
import os
import signal
import socket
import sys
import time


def serve(path: str) -> None:
    import torch
    from flwr.supercore.cli import flower_superexec
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    import stgt.flower  # noqa: F401

    commands = {
        "flower-superexec": flower_superexec,
        "flwr-serverapp": flwr_serverapp,
        "flwr-clientapp": flwr_clientapp,
    }
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first one imports half of torch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them, as nobody does in Flower
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen()
    os.rename(path + ".new", path)  # who sees it can connect
    while True:
        connection, _ = listener.accept()
        content, outputs, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if os.fork() == 0:
            for number, output in enumerate(outputs, start=1):
                os.dup2(output, number)
            request = json.loads(content)
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            sys.argv = request["command"]
            try:
                commands[sys.argv[0]]()
            finally:
                os._exit(0)
        connection.close()
        for output in outputs:
            os.close(output)


def call(path: str, command: list[str]) -> None:
    request = {"command": command, "environment": dict(os.environ), "folder": os.getcwd()}
    while not os.path.exists(path):  # it is still importing
        time.sleep(0.1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) == 2 else call(sys.argv[1], sys.argv[2:])
