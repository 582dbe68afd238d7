"""Traces in files: what was saved is loaded; what is damaged, foreign or hostile is refused in one sentence."""

import io
import json
import os
import pickle
import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import stgt
from bits import assert_same_array, assert_same_bits
from catalogue import instances, logistic, quadratic
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
        assert one.measured.all_names == trace.measured.all_names
    with pytest.raises(KeyError, match="is not a measurement"):
        loaded["speed"]
    with pytest.raises(AttributeError, match=r"has name, n, p, .* and no data"):
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
    assert_refused(path)


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("flip", [0x01, 0xFF])
@pytest.mark.sampled
def test_a_byte_that_flipped(part, flip, saved, tmp_path):
    """Every second byte: the file is refused, or the byte carries nothing, as one of the archive's dates."""
    path, trace = tmp_path / "run.stgt", small()
    for place in range(2 * part, len(saved), 10):
        damaged = bytearray(saved)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        try:
            loaded = stgt.Trace.load(path)
        except ValueError:
            assert_refused(path)
        else:
            assert_same_bits(loaded, trace)


def write(path: Path, **arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def rewritten(saved: bytes, path: Path, change, forge: bool = False, **arrays) -> Path:
    """The file with its JSON text changed, in an archive that is sound; with the right checksum if it is forged."""
    with np.load(io.BytesIO(saved)) as archive:
        found = {name: archive[name] for name in archive.files}
    text = json.loads(found.pop(store.TEXT).tobytes())
    found.update(arrays)
    text = change(text)
    if forge:
        text.pop("checksum", None)
        text["checksum"] = store._checksum(text, found)
    write(path, **{store.TEXT: np.frombuffer(json.dumps(text).encode(), np.uint8)}, **found)
    return path


def test_an_edited_text(saved, tmp_path):
    path = tmp_path / "run.stgt"
    assert_same_bits(stgt.Trace.load(rewritten(saved, path, lambda text: text)), small())

    def edit(text):
        text["traces"][0]["algorithm"]["options"]["gamma"] = 0.06
        return text

    assert_refused(rewritten(saved, path, edit), "was edited, as its checksum is wrong")
    assert_refused(rewritten(saved, path, lambda text: text, **{"0/seconds": np.zeros(6)}), "was edited")
    assert_refused(rewritten(saved, path, lambda text: text, other=np.zeros(1)), "was edited")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: {},
        lambda text: {**text, "kind": "model"},
        lambda text: {name: value for name, value in text.items() if name != "format"},
        lambda text: {**text, "format": "one"},
        lambda text: {**text, "format": 0},
        lambda text: {**text, "format": None},
        lambda text: {**text, "traces": 3},
        lambda text: {**text, "traces": []},
        lambda text: {**text, "traces": [{}]},
        lambda text: {name: value for name, value in text.items() if name != "traces"},
        lambda text: {**text, "traces": [{**text["traces"][0], "oracle": {"name": "Noisy"}}]},
        lambda text: {**text, "traces": [{**text["traces"][0], "algorithm": {"name": "STGT"}}]},
    ],
)
def test_a_forged_text(change, saved, tmp_path):
    """With a right checksum, so that nothing but its content is wrong."""
    assert_refused(rewritten(saved, tmp_path / "run.stgt", change, forge=True))


@pytest.mark.parametrize("text", [b"[1, 2]", b"3", b"null", b"{", b"\xff\xfe", b"", b"[" * 100_000])
def test_a_text_that_is_none(text, tmp_path):
    path = tmp_path / "run.stgt"
    write(path, **{store.TEXT: np.frombuffer(text, np.uint8)})
    assert_refused(path)


def test_a_newer_format(saved, tmp_path):
    newer = rewritten(saved, tmp_path / "run.stgt", lambda text: {**text, "format": store.FORMAT + 1})
    assert_refused(newer, f"has format {store.FORMAT + 1}, and this version of stgt reads format {store.FORMAT}")


def test_other_files(tmp_path):
    path = tmp_path / "run.stgt"
    assert_refused(path, "there is no such file")
    assert_refused(tmp_path, "there is no such file|is a folder")
    path.write_bytes(b"")
    assert_refused(path)
    path.write_text("round,residual\n0,1.0\n")
    assert_refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    assert_refused(path)
    with zipfile.ZipFile(path, "w"):
        pass
    assert_refused(path)
    write(path, x=np.zeros(3))
    assert_refused(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert_refused(path)


class Hostile:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_file_is_executed(saved, tmp_path):
    """Pickles in all places where NumPy would look for one; with allow_pickle=True they do work."""
    path, made = tmp_path / "run.stgt", tmp_path / "made"
    hostile = np.array([Hostile(made)], dtype=object)
    write(path, **{store.TEXT: hostile})
    assert_refused(path)
    with np.load(io.BytesIO(saved)) as archive:
        sound = {name: archive[name] for name in archive.files}
    write(path, **{**sound, "0/seconds": hostile})
    assert_refused(path)
    write(path, **sound, other=hostile)
    assert_refused(path)
    with path.open("wb") as file:
        np.save(file, hostile)
    assert_refused(path)
    path.write_bytes(pickle.dumps(Hostile(made)))
    assert_refused(path)
    assert not made.exists()
    write(path, x=hostile)
    with np.load(path, allow_pickle=True) as archive:
        _ = archive["x"]
    assert made.exists(), "the pickle was harmless: the test shows nothing"


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
    with pytest.raises(ValueError, match="the run to go on is another one: algorithm"):
        stgt.simulate(stgt.STGT(gamma=0.05, tau=2), *parts, 1, resume=loaded)
    assert stgt.simulate(namesake(gamma=0.05, tau=2), *parts, 1, resume=loaded).rounds == 5


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .*: give another one"):
        small().save(tmp_path / "file" / "run.stgt")
    with pytest.raises(ValueError, match=r"cannot be written .*: give another one"):
        small().save(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"], "no temporary file is left"
