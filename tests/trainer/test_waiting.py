"""What becomes of a wait that never ends, as gloo's does for a message in the middle of which a connection closes."""

import subprocess
import sys
import threading
import weakref

import pytest

from stgt.torch.waiting import ForgottenError, Waiter


def test_a_wait_that_is_over_is_left_behind_and_the_next_one_is_not():
    waiter, never, done = Waiter(), threading.Event(), []
    with pytest.raises(ForgottenError, match="closed in the middle"):
        waiter.run(lambda: never.wait(30), lambda: True)
    waiter.run(lambda: done.append(1), lambda: False)
    assert done == [1]
    never.set()
    waiter.stop()


def test_a_thread_that_is_left_behind_ends_with_its_wait_and_keeps_what_it_needs_until_then():
    class Kept: ...

    kept, waiter, never = Kept(), Waiter(), threading.Event()
    alive, before = weakref.ref(kept), set(threading.enumerate())
    with pytest.raises(ForgottenError):
        waiter.run(lambda: never.wait(30), lambda: True, keep=kept)
    del kept
    (left,) = set(threading.enumerate()) - before
    assert alive() is not None
    never.set()
    left.join(30)
    assert not left.is_alive()
    assert alive() is None


def test_an_error_is_the_callers():
    waiter = Waiter()
    with pytest.raises(ZeroDivisionError):
        waiter.run(lambda: 1 / 0, lambda: False)
    waiter.stop()


ENDS = """
import time
from datetime import timedelta
from stgt.torch import addresses
from stgt.torch.waiting import start_thread

store = addresses.open_store(addresses.LOOPBACK, timedelta(seconds=10))

def run():
    end = time.monotonic() + 2.0  # the process ends before
    while time.monotonic() < end:
        store.check(["key"])

start_thread(run)
"""


@pytest.mark.thorough
def test_a_process_ends_after_its_threads():
    """A thread that comes back from C++ while Python shuts down makes the process abort, with code -6."""
    assert subprocess.run([sys.executable, "-c", ENDS], timeout=120).returncode == 0
