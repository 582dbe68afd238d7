"""Ctrl-C: a run ends early and is returned; what simulates on the way to something else is interrupted as ever."""

import os
import signal

import numpy as np
import pytest

import stgt
from stgt.simulator import drive
from stgt.simulator.drive import interrupts_as_ever, parallel_map

LINE = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
MANY = 50_000  # rounds, which take far longer than a test may


@pytest.fixture(autouse=True)
def in_a_terminal():
    """What a shell starts in the background is born deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "put back as it was"
    signal.signal(signal.SIGINT, before)


def long_ago():
    drive._presses.last, drive._presses.pending = -np.inf, False


def interrupt_once():
    sent = []

    def progress(done, total):
        if not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def run(progress=None, **options) -> stgt.Trace:
    graph = stgt.topology.complete(2)
    return stgt.simulate(stgt.STGT(gamma=0.1), LINE, graph, MANY, engine="numpy", progress=progress, **options)


def test_the_trace_so_far_comes_back():
    trace = run(interrupt_once())
    assert trace.interrupted
    assert 0 < trace.rounds < MANY
    assert trace.residual.shape == (1, trace.rounds + 1)
    assert f"interrupted after {trace.rounds} of {MANY} rounds" in trace.notes[0]


def test_a_second_one_soon_after_leaves_also_a_later_run():
    assert run(interrupt_once()).interrupted
    with pytest.raises(KeyboardInterrupt):
        run(interrupt_once())


def test_one_that_came_too_late_is_not_lost():
    """Pressed in the last stretch of a run, which is returned whole; the next one does not begin."""
    graph = stgt.topology.complete(2)
    options = {"engine": "numpy", "callback": lambda r, state: r == 3 and os.kill(os.getpid(), signal.SIGINT)}
    whole = stgt.simulate(stgt.STGT(gamma=0.1), LINE, graph, 3, **options)
    assert not whole.interrupted
    with pytest.raises(KeyboardInterrupt):
        run()
    assert stgt.simulate(stgt.STGT(gamma=0.1), LINE, graph, 3, engine="numpy").rounds == 3


def test_within_something_else_it_is_raised():
    with pytest.raises(KeyboardInterrupt), interrupts_as_ever():
        run(interrupt_once())
    long_ago()
    assert run(interrupt_once()).interrupted, "and noted again after it"


def test_all_that_run_side_by_side_end():
    ended = []

    def work(progress):
        ended.append(run(progress).rounds)
        return ended[-1]

    with pytest.raises(KeyboardInterrupt):
        parallel_map(work, [interrupt_once(), None, None, None], at_once=2)
    assert len(ended) <= 2, "those that had not begun do not begin"
    assert all(rounds < MANY for rounds in ended)
    assert parallel_map(lambda k: 2 * k, [1, 2, 3], at_once=2) == [2, 4, 6]


def test_an_error_of_one_ends_the_others():
    def work(bad):
        if bad:
            raise ValueError("this one")
        return run().rounds

    with pytest.raises(ValueError, match="this one"):
        parallel_map(work, [True, False, False], at_once=2)


def test_experiments_are_interrupted():
    from stgt.study.demo import demo

    with pytest.raises(KeyboardInterrupt):
        demo(interrupt_once())
