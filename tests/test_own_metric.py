"""A user's metric and oracle, registered in a script: by name in Python, spec files, the command line and files."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stgt
from catalogue import quadratic
from stgt import cli
from stgt._internal.registry import METRICS, ORACLES
from stgt.study.spec.schema import spec_schema

PROBLEM, RING = quadratic(4, 3), stgt.topology.ring(4)
STGT = stgt.STGT(gamma=0.05, tau=2)

SCRIPT = '''
from dataclasses import dataclass
import stgt

stgt.register(
    stgt.Metric(
        "widest",
        "max ‖x_i − x̄‖²",
        lambda at: ((at.x - at.mean) ** 2).sum(axis=1).max(),
        kind="error",
    )
)
stgt.register(
    stgt.Metric("away", "‖x̄ − x*‖", lambda at: ((at.mean - at.optimum) ** 2).sum() ** 0.5, needs=("optimum",))
)


@stgt.register
@dataclass(frozen=True)
class Doubled(stgt.Oracle):
    """Twice the gradient."""

    factor: float = 2.0

    def gradient(self, ops, model, data, state, x, drawn):
        return self.factor * model.gradients(ops.xp, data, x), state
'''

SPEC = """
rounds = 4
seeds = 2
metrics = ["residual", "consensus", "widest"]
by = "widest"
[algorithm]
name = "STGT"
gamma = 0.05
[oracle]
name = "Doubled"
factor = 3.0
[problem]
name = "ridge"
n = 4
p = 2
[topology]
name = "ring"
"""


@pytest.fixture
def script(tmp_path):
    """The script's path; what it registers is forgotten after the test."""
    kept = [(registry, dict(registry._known)) for registry in (METRICS, ORACLES)]
    path = tmp_path / "own.py"
    path.write_text(SCRIPT)
    yield path
    for registry, known in kept:
        registry._known = known


def imported(script):
    from stgt._internal.registry import import_script

    import_script(script)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_by_name_in_python(script, engine, tmp_path):
    imported(script)
    names = ["widest", "away", "residual"]
    trace = stgt.simulate(STGT, PROBLEM, RING, 3, metrics=names, oracle="Doubled", engine=engine, dtype="float64")
    x = trace.x[0]
    np.testing.assert_allclose(trace["widest"][0, -1], ((x - x.mean(axis=0)) ** 2).sum(axis=1).max(), rtol=1e-12)
    np.testing.assert_allclose(trace["away"] ** 2, trace["residual"], rtol=1e-12)
    faster = stgt.simulate(
        stgt.STGT(gamma=0.1, tau=2), PROBLEM, RING, 3, engine=engine, dtype="float64", oracle="Exact"
    )
    np.testing.assert_allclose(trace.x[0], faster.x[0], rtol=1e-9)  # γ · 2g, and c follows the doubled gradients
    path = trace.save(tmp_path / "run.stgt")
    loaded = stgt.Trace.load(path)
    assert loaded.measured["widest"] is METRICS["widest"]
    more = stgt.simulate(STGT, PROBLEM, RING, 2, resume=loaded)
    assert list(more.measured) == names
    whole = stgt.simulate(STGT, PROBLEM, RING, 5, metrics=names, oracle="Doubled", engine=engine, dtype="float64")
    np.testing.assert_array_equal(more["widest"], whole["widest"])
    METRICS._known.pop("widest")
    ORACLES._known.pop("Doubled")
    other = stgt.Trace.load(path)
    np.testing.assert_array_equal(other["widest"], trace["widest"])
    assert other.measured["widest"] is None
    with pytest.raises(ValueError, match="the run measures 'widest' by a function of your own"):
        stgt.simulate(STGT, PROBLEM, RING, 2, resume=other)


def test_in_a_spec_file_and_on_the_command_line(script, tmp_path):
    spec = tmp_path / "run.toml"
    spec.write_text(SPEC)
    run = CliRunner()
    refused = run.invoke(cli.app, ["run", str(spec), "--out", str(tmp_path / "a")])
    assert "by='widest': choose from 'residual'" in str(refused.exception)
    made = run.invoke(cli.app, ["run", str(spec), "--out", str(tmp_path / "b"), "--import", str(script)])
    assert made.exit_code == 0, made.output
    head = next((tmp_path / "b").glob("*/metrics.csv")).read_text().splitlines()[0]
    assert "residual,consensus,widest,communications" in head
    listed = run.invoke(cli.app, ["list", "metrics", "--import", str(script)]).output
    assert "max ‖x_i − x̄‖²" in listed
    assert "Twice the gradient." in run.invoke(cli.app, ["list", "oracles", "--import", str(script)]).output
    page = run.invoke(cli.app, ["report", str(tmp_path / "b"), "--out", str(tmp_path / "b.html")])
    assert page.exit_code == 0, page.output
    assert json.dumps("max ‖x_i − x̄‖²") in (tmp_path / "b.html").read_text()
    names = spec_schema()["properties"]["metrics"]["items"]["enum"]
    assert {"widest", "residual"} <= set(names)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"^oracle='Exat': choose from .*did you mean 'Exact'"):
        stgt.simulate(STGT, PROBLEM, RING, 1, oracle="Exat")
    with pytest.raises(ValueError, match=r"^metrics='residul': choose from .*did you mean 'residual'"):
        stgt.simulate(STGT, PROBLEM, RING, 1, metrics=["residul"])
    with pytest.raises(ValueError, match=r"metric 'residual' is registered already, by stgt\.simulator\.metrics"):
        stgt.register(stgt.Metric("residual", "", abs))
    needy = stgt.Metric("needy", "", lambda at: at.mean[0], needs=("tracker",))
    with pytest.raises(ValueError, match="metrics has 'needy', but D-PSGD tracks no gradient"):
        stgt.simulate(stgt.DPSGD(gamma=0.1), PROBLEM, RING, 1, metrics=[needy])


def test_every_metric_says_what_it_is():
    """The library's have a formula, and what they need is known, so that an absent one has its reason."""
    needs = {"optimum", "losses", "gradients", "tracker", "conserved", "test", "classes", "last_gradients"}
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.formula
        assert set(metric.needs) <= (set(stgt.list_metrics()) if metric.of_trace else needs)
        assert metric.built_in


def test_the_page_has_their_formulas():
    """docs/metrics.md has a row for each of the library's, in their order."""
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, flags=re.M)
    assert rows == [(name, one.formula) for name, one in METRICS.items() if one.built_in]


def test_a_class_that_is_no_dataclass_of_the_library():
    @dataclass(frozen=True)
    class Plain:
        pass

    with pytest.raises(ValueError, match="Plain is neither an algorithm nor an oracle"):
        stgt.register(Plain)
