"""Processes that are forked from this one, because an import of PyTorch takes seconds; and the lines they print."""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

SAID = "@"  # the first character of a line that `say` writes
PAUSE = 0.01  # seconds between two checks
KILLED_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


def say(what: str, **values: Any) -> None:
    """Writes a line for the parent process."""
    print(SAID + json.dumps({"what": what, "time": time.time(), **values}), flush=True)


def prepare() -> None:
    """Common first steps of all processes, done once before the fork."""
    os.environ.setdefault("RUST_LOG", "error")  # otherwise torchft logs every action
    torch.set_num_threads(1)
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)  # the first optimiser imports half of torch
    import torchft.coordination
    import torchft.process_group  # noqa: F401

    gc.collect()
    gc.freeze()  # otherwise each process would scan all of torch for garbage, and so copy it


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Forked:
    """One process that calls a function, with its output in a file.

    Args:
        name: the name of the process and of its file.
        folder: the folder of the file.
        function: the function that it calls.
        arguments: the arguments of the function.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        function: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ):
        self.name, self.log = name, folder / f"{name}-{time.monotonic_ns()}.log"
        self.exit_code: int | None = None
        self.lines: list[dict[str, Any]] = []  # its lines up to the last `read`
        self._seen = 0
        self.log.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        self.number = os.fork()
        if self.number == 0:
            _become(self.log, function, arguments, environment or {})

    def read(self) -> list[dict[str, Any]]:
        """All its lines."""
        with self.log.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        whole, self._seen = new[: new.rfind(b"\n") + 1], self._seen + new.rfind(b"\n") + 1
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(SAID):
                self.lines.append(json.loads(line[1:]))
        return self.lines

    def said(self, what: str) -> list[dict[str, Any]]:
        """Its lines of a kind."""
        return [line for line in self.read() if line["what"] == what]

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.exit_code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self.exit_code = os.waitstatus_to_exitcode(status) if number else None
        return self.exit_code

    def send(self, sign: int) -> None:
        if self.poll() is None:
            os.kill(self.number, sign)

    def end(self) -> None:
        """Kills it, if it runs."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(PAUSE)

    def last_words(self, count: int = 12) -> str:
        words = [line for line in self.log.read_text(errors="replace").splitlines() if not line.startswith(SAID)]
        return "\n".join(words[-count:])


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for a condition; a TimeoutError names it if it does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(PAUSE)


def lighthouse(address: str, **options: int) -> None:
    """Serves torchft's lighthouse; its options are those of LighthouseServer."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind=address, **{"min_replicas": 1} | options)
    say("serves", address=server.address())
    while True:
        time.sleep(60)


def _become(
    log: Path, function: Callable[..., None], arguments: tuple[Any, ...], environment: Mapping[str, str]
) -> NoReturn:
    """Runs the function, and ends the process with it."""
    code = 1
    try:
        atexit._clear()  # drops the exit handlers of the parent process
        with suppress(OSError):
            ctypes.CDLL(None).prctl(KILLED_WITH_PARENT, signal.SIGKILL)
        os.environ.update(environment)
        with open(os.devnull) as nothing, log.open("w") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        function(*arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)
