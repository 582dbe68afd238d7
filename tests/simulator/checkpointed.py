"""A run with a checkpoint, in a process of its own: ENGINE FOLDER. It says each round that it has made.

After round PAUSE it waits for a line of input, so that it is never done before it is disturbed.
"""

import signal
import sys
import time
from pathlib import Path

import stgt
from catalogue import logistic

ROUNDS, PAUSE, SLEEP = 120, 110, 5


def run(engine: str, rounds: int = ROUNDS, **options) -> stgt.Trace:
    """SVRG's memory, random graphs, a coin and a stepsize of each round: all that has to be known again."""
    parts = (stgt.ProxSkip(gamma=stgt.schedules.inverse(0.05, delay=50), p=0.4), logistic(6))
    graph = stgt.topology.random_matching(6, seed=2)
    return stgt.simulate(*parts, graph, rounds, seeds=2, engine=engine, oracle=stgt.oracles.SVRG(7), **options)


def said(r: int, state: object) -> None:
    print(r, flush=True)
    if r == PAUSE:
        sys.stdin.readline()
    if r == SLEEP and "sleeps" in sys.argv:
        time.sleep(300)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born without
    engine, folder = sys.argv[1], Path(sys.argv[2])
    trace = run(engine, checkpoint=folder / "run.stgt", every=1, callback=said)
    trace.save(folder / "result.stgt")
