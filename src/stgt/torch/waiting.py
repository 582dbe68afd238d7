"""Threads in addition to the training thread: waits for gloo that can be abandoned, and threads that end before Python.

If a connection closes in the middle of a message, gloo ends the waits for messages that have not begun. It forgets the
message that has begun (`Pair::signalException` of its TCP transport): the wait for that one ends only with its timeout,
and cannot be cancelled. So a separate thread waits. If the group has failed, the thread is abandoned, together with
what it waits for, and ends later.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

LOOK = 0.1  # seconds between two checks of whether the group still works
GRACE = 0.2  # seconds for gloo to report a failure itself
AT_EXIT = 25.0  # seconds for threads to end with the process: longer than each of their calls

_threads: list[threading.Thread] = []
_lock = threading.Lock()


def start_thread(run: Callable[[], object]) -> threading.Thread:
    """Starts a thread that communicates. At its end the process waits for this thread.

    Python, while it shuts down, ends each thread that returns to it, even within C++ or Rust code. That aborts the
    process.
    """
    made = threading.Thread(target=run, daemon=True)
    made.start()
    with _lock:
        _threads[:] = [*(one for one in _threads if one.is_alive()), made]
    return made


@atexit.register  # registered before any membership's own exit function, which therefore runs first
def _join_all() -> None:
    end = time.monotonic() + AT_EXIT
    for one in _threads:
        one.join(max(0.0, end - time.monotonic()))


class ForgottenError(RuntimeError):
    """gloo has forgotten a message."""


class Waiter:
    """A thread that waits for something.

    Args:
        short: does each wait end within `AT_EXIT`? If so, the process waits for the thread when it ends.
    """

    def __init__(self, short: bool = False):
        self._jobs: queue.SimpleQueue[_Job] | None = None
        self._short = short

    def run(self, wait: Callable[[], object], over: Callable[[], bool], keep: object = None) -> None:
        """Calls `wait` and raises its exception. A ForgottenError if it does not end although `over` is true.

        Then the thread keeps `keep` until the wait has ended, even after Python has shut down.
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
        """Ends the thread once its wait has ended."""
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
        except BaseException as error:  # it is raised in the caller's thread
            job.error = error
        job.done.set()
        del job  # otherwise its tensors would stay in memory until the next job
