"""Small studies for the tests of the page, with known numbers."""

from dataclasses import replace

import numpy as np

import stgt
from stgt.simulator import Rule
from stgt.study import Comparison
from stgt.study.report import Study

# Gradient descent on x²/2 from x = 1: x_r = (1 − γ)^r, the residual (1 − γ)^2r. Every node is alike.
LINE = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
BOTH = stgt.topology.complete(2)
SCRIPT = "<script>alert(1)</script>"
HOSTILE = "</script><img src=x onerror=alert(2)>&lt;b&gt; %{x} {{data}} $\\alpha$"


def descent(gamma, rounds=20, **options):
    return stgt.simulate(stgt.DPSGD(gamma=gamma), LINE, BOTH, rounds, x0=[1.0], engine="numpy", **options)


def descents(gammas, rounds=20):
    grid = {"gamma": gammas}
    return stgt.sweep(stgt.DPSGD(gamma=0.1), LINE, BOTH, rounds, x0=[1.0], engine="numpy", grid=grid)


def with_values(trace, **values):
    """The trace with other measurements, (seeds, rounds + 1), and as many seeds as these have."""
    seeds, length = next(iter(values.values())).shape
    lost = np.array([np.argmax(~np.isfinite(one)) if not np.isfinite(one).all() else -1 for one in values["residual"]])
    run_state = replace(trace.run_state, rounds=length - 1, diverged_at=lost, links=np.full((seeds, length - 1), 2.0))
    counted = {name: np.tile(2.0 * np.arange(length), (seeds, 1)) for name in ("gradients", "messages", "floats")}
    return replace(trace, values={**values, **counted}, run_state=run_state, seeds=tuple(range(seeds)), absent={})


def study(runs, *, rule=None, **options):
    """One whose methods are the keys of `runs`; the best of each is chosen by the rule."""
    lists = {method: list(traces) if isinstance(traces, list) else [traces] for method, traces in runs.items()}
    found = Comparison.of(rule or Rule("residual"), lists)
    given = {"name": "a study", "kind": "run", "spec": "rounds = 20\n", "facts": {"python": "3.11"}, **options}
    return Study(found, **given)


def hostile():
    """A study whose every word is an attack."""
    trace = replace(descent(0.5), notes=(SCRIPT, HOSTILE))
    trace = replace(trace, values={**trace.values, HOSTILE: trace.residual + 0.1})
    other = replace(BOTH, name=SCRIPT)
    words = {"spec": f"# {SCRIPT}\n# {HOSTILE}", "status": HOSTILE, "facts": {SCRIPT: HOSTILE}}
    runs = {SCRIPT: [trace, *descents([0.25])], HOSTILE: descent(0.25)}
    advice, graphs = {SCRIPT: SCRIPT, HOSTILE: HOSTILE}, {SCRIPT: other, HOSTILE: BOTH}
    rule = Rule("residual")
    return study(runs, name=SCRIPT, kind="compare", rule=rule, advice=advice, topologies=graphs, **words)
