"""Threads next to the training's own: waits for gloo that can be given up, and threads that end before Python does.

Where a connection closes in the middle of a message, gloo ends the waits for messages that have not begun, and forgets
the one that has (`Pair::signalException` of its TCP transport): the wait for it ends with its time-out only, and cannot
be called back. So a thread of its own waits. If the group does not work any more, the thread is left behind, with what
it waits for, and ends later.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

LOOK = 0.1  # seconds between two looks at whether the group still works
GRACE = 0.2  # seconds for gloo to tell by itself that it does not
AT_EXIT = 25.0  # seconds for threads to end with the process: longer than each of their calls takes

_threads: list[threading.Thread] = []
_lock = threading.Lock()


def start_thread(run: Callable[[], object]) -> threading.Thread:
    """Starts a thread that communicates. When the process ends, it waits for it.

    While Python shuts down, it ends each thread that returns to it, in the middle of C++ or Rust: the process aborts.
    """
    made = threading.Thread(target=run, daemon=True)
    made.start()
    with _lock:
        _threads[:] = [*(one for one in _threads if one.is_alive()), made]
    return made


@atexit.register  # before any membership registers its own end, which comes first
def _join_all() -> None:
    end = time.monotonic() + AT_EXIT
    for one in _threads:
        one.join(max(0.0, end - time.monotonic()))


class ForgottenError(RuntimeError):
    """A message that gloo has forgotten."""


class Waiter:
    """A thread in which something is waited for.

    Args:
        short: does each wait end within `AT_EXIT`? Then the process waits for the thread when it ends.
    """

    def __init__(self, short: bool = False):
        self._jobs: queue.SimpleQueue[_Job] | None = None
        self._short = short

    def run(self, wait: Callable[[], object], over: Callable[[], bool], keep: object = None) -> None:
        """Calls `wait` and raises what it raises; a ForgottenError if it does not end though all is over.

        Then the thread keeps `keep` until the wait has ended: also at the end of the process, when Python is gone.
        """
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            work = partial(_work, self._jobs)
            start_thread(work) if self._short else threading.Thread(target=work, daemon=True).start()
        job, end = _Job(wait), None
        self._jobs.put(job)
        while not job.done.wait(LOOK):
            if end is None and over():
                end = time.monotonic() + GRACE
            if end is not None and time.monotonic() > end:
                held = ctypes.py_object(keep)
                ctypes.pythonapi.Py_IncRef(held)
                self._jobs.put(_Job(partial(ctypes.pythonapi.Py_DecRef, held)))
                self.stop()
                raise ForgottenError("a connection was closed in the middle of a message")
        if job.error is not None:
            raise job.error

    def stop(self) -> None:
        """Ends the thread, once its wait has ended."""
        if self._jobs is not None:
            self._jobs.put(_Job(_stop))
            self._jobs = None

    def __del__(self):
        self.stop()


class _Job:
    def __init__(self, wait: Callable[[], object]):
        self.wait, self.done = wait, threading.Event()
        self.error: BaseException | None = None


def _stop() -> None:
    raise SystemExit


def _work(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        job = jobs.get()
        try:
            job.wait()
        except SystemExit:
            return
        except BaseException as error:  # the caller's
            job.error = error
        job.done.set()
        del job  # or its tensors would stay until the next one
