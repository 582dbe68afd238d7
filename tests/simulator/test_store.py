"""Traces in files: what was saved is loaded; what is damaged, foreign or hostile is refused in one sentence."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import stgt
from bits import assert_same_array, assert_same_bits
from catalogue import instances, logistic, quadratic
from stgt._internal import container
from stgt._internal.registry import ALGORITHMS
from stgt.simulator import store

RING = stgt.topology.ring(4)
OWN = {"largest": lambda x: abs(x).max(), "spread": stgt.of_state(lambda state: abs(state["x"]).sum())}


def small(**options) -> stgt.Trace:
    options = {"engine": "numpy", "seeds": 2, **options}
    return stgt.simulate(stgt.STGT(gamma=0.05, tau=2), quadratic(4, 2, noise=0.1), RING, 5, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> bytes:
    return small().save(tmp_path_factory.mktemp("saved") / "run.stgt").read_bytes()


def assert_refused(path: Path, words: str = "damaged") -> None:
    """One sentence, with the file in it."""
    with pytest.raises(ValueError, match=words) as caught:
        stgt.Trace.load(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert said.endswith(".")
    assert "\n" not in said
    assert not re.search(r"[.] [A-Z]", said), "more than one sentence"


def assert_is_what_was_saved(loaded: stgt.Trace, trace: stgt.Trace) -> None:
    assert_same_bits(loaded, trace)
    assert_same_array(loaded.seconds, trace.seconds, "seconds")
    assert_same_array(loaded["lyapunov"], trace["lyapunov"], "lyapunov")
    assert repr(loaded) == repr(trace)
    assert (loaded.algorithm, loaded.oracle, loaded.rho) == (trace.algorithm, trace.oracle, trace.rho)
    assert (loaded.best(), loaded.tail().tolist()) == (trace.best(), trace.tail().tolist())
    for name in ("name", "n", "p", "L", "mu", "noise", "batch"):
        assert getattr(loaded.problem, name) == getattr(trace.problem, name)
    for name in ("name", "n", "degree", "participation", "has_server", "seed"):
        assert getattr(loaded.topology, name) == getattr(trace.topology, name)
    assert [list(one) for one in loaded.params] == [list(one) for one in trace.params]


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_a_loaded_trace_is_the_saved_one(engine, tmp_path):
    """And so is one that was loaded, saved and loaded again; the tables of both are equal."""
    trace = small(engine=engine, metrics=OWN, oracle=stgt.oracles.Noisy(0.3))
    loaded = stgt.Trace.load(trace.save(tmp_path / "deep" / "run.stgt"))
    again = stgt.Trace.load(loaded.save(tmp_path / "again.stgt"))
    for one in (loaded, again):
        assert_is_what_was_saved(one, trace)
        assert one.to_csv(tmp_path / "a.csv").read_text() == trace.to_csv(tmp_path / "b.csv").read_text()
        assert one.to_pandas().equals(trace.to_pandas())
        assert list(one.measured) == list(trace.measured)
    with pytest.raises(KeyError, match="is not a measurement"):
        loaded["speed"]
    with pytest.raises(AttributeError, match=r"has only name, n, p, .* and no data"):
        _ = loaded.problem.data


@pytest.mark.parametrize("name", instances())
def test_every_method_is_known_again(name, tmp_path):
    for gamma in (0.05, stgt.schedules.inverse(0.05, delay=3)):
        algorithm = instances(gamma)[name]
        loaded = stgt.Trace.load(
            stgt.simulate(algorithm, logistic(4), RING, 1, engine="numpy").save(tmp_path / "run.stgt")
        )
        assert loaded.algorithm == algorithm
        assert type(loaded.oracle).__name__ == (algorithm.spec().oracle or "Minibatch")


def test_stepsizes_of_each_node_and_of_a_function(tmp_path):
    """A function is not in the file: what it said for the rounds that were made is."""
    each = stgt.AugDGM(gamma=[0.01, 0.02, 0.03, 0.04])
    loaded = stgt.Trace.load(stgt.simulate(each, quadratic(4, 2), RING, 2, engine="numpy").save(tmp_path / "run.stgt"))
    assert loaded.algorithm == each
    function = stgt.STGT(gamma=lambda r: 0.1 / (1 + r), tau=3)
    loaded = stgt.Trace.load(
        stgt.simulate(function, quadratic(4, 2), RING, 2, engine="numpy").save(tmp_path / "run.stgt")
    )
    assert (loaded.algorithm.label, loaded.algorithm.tau) == ("ST-GT", 3)
    assert loaded.algorithm.gamma == {"function": [0.1, 0.05]}
    assert loaded.to_csv(tmp_path / "table.csv").exists()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_cut_off(share, saved, tmp_path):
    path = tmp_path / "run.stgt"
    path.write_bytes(saved[: int(share * len(saved))])
    assert_refused(path, "is cut off: take another copy")


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("flip", [0x01, 0xFF])
@pytest.mark.sampled
def test_a_byte_that_flipped(part, flip, saved, tmp_path):
    """Every second byte; tests/test_container.py has every bit of a smaller file."""
    path = tmp_path / "run.stgt"
    for place in range(2 * part, len(saved), 10):
        damaged = bytearray(saved)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        assert_refused(path, "damaged|cut off|is not a trace")


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: {},
        lambda plain: 3,
        lambda plain: [],
        lambda plain: [{}],
        lambda plain: [*plain, *plain],
        lambda plain: [{**plain[0], "oracle": {"sigma": 1}}],
        lambda plain: [{**plain[0], "algorithm": None}],
        lambda plain: [{name: value for name, value in plain[0].items() if name != "rounds"}],
    ],
)
def test_a_forged_text(change, saved, tmp_path):
    """With a right checksum, so that nothing but its content is wrong."""
    path = tmp_path / "run.stgt"
    path.write_bytes(saved)
    arrays, plain = container.read(path, store.KIND)
    assert_refused(
        container.write(path, store.KIND, arrays, change(plain)), "is not a trace of stgt: give another file"
    )


def test_other_files(tmp_path):
    path = tmp_path / "run.stgt"
    assert_refused(path, "there is no such file")
    assert_refused(tmp_path, "there is no such file|is a folder")
    path.write_text("round,residual\n0,1.0\n")
    assert_refused(path, "is not a trace of stgt")
    assert_refused(container.write(path, "shard", {"x": np.zeros(3)}, []), "is not a trace of stgt")


@dataclass(frozen=True)
class Unregistered(stgt.STGT):
    beta: float = 0.5


def test_a_method_whose_class_is_not_known(tmp_path):
    """Its name and options are there; with the class at hand the run goes on."""
    parts = (Unregistered(gamma=0.05, tau=2, beta=0.25), quadratic(4, 2, noise=0.1), RING)
    whole, before = (stgt.simulate(*parts, rounds, engine="numpy") for rounds in (9, 4))
    loaded = stgt.Trace.load(before.save(tmp_path / "run.stgt"))
    assert (loaded.algorithm.label, loaded.algorithm.gamma, loaded.algorithm.tau) == ("ST-GT", 0.05, 2)
    assert loaded.algorithm.beta == 0.25
    assert repr(loaded) == repr(before)
    assert_same_array(loaded["lyapunov"], before["lyapunov"], "lyapunov")
    assert_same_bits(stgt.simulate(*parts, 5, resume=loaded), whole)
    with pytest.raises(ValueError, match=r"beta is 0\.3, and was 0\.25"):
        stgt.simulate(replace(parts[0], beta=0.3), *parts[1:], 5, resume=loaded)


def test_a_method_of_ones_own_with_a_name_of_the_librarys(tmp_path):
    """A file tells the two apart: it neither loads as the other, nor goes on as it."""
    namesake = dataclass(frozen=True)(type("STGT", (stgt.STGT,), {"tracker": lambda self, state: 0 * state["c"]}))
    assert "STGT" in dict(ALGORITHMS.items())
    parts = (quadratic(4, 2), RING)
    trace = stgt.simulate(namesake(gamma=0.05, tau=2), *parts, 4, engine="numpy")
    loaded = stgt.Trace.load(trace.save(tmp_path / "run.stgt"))
    assert type(loaded.algorithm) is not stgt.STGT
    with pytest.raises(ValueError, match="the run to resume is a different one: algorithm"):
        stgt.simulate(stgt.STGT(gamma=0.05, tau=2), *parts, 1, resume=loaded)
    assert stgt.simulate(namesake(gamma=0.05, tau=2), *parts, 1, resume=loaded).rounds == 5


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .*: give another one"):
        small().save(tmp_path / "file" / "run.stgt")
    with pytest.raises(ValueError, match=r"cannot be written .*: give another one"):
        small().save(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"], "no temporary file is left"
