"""A run as data: read, checked, written and read back."""

import numpy as np
import pytest

import stgt
from stgt.study import build_run, load_spec, spec_text
from stgt.study.spec.runs import RunSpec, Spec

RUN = {
    "algorithm": {"name": "STGT", "gamma": 0.1, "tau": 3},
    "problem": {"name": "ridge", "n": 6, "p": 2},
    "topology": {"name": "ring"},
}
TEXT = """
rounds = 9
target = 0.5
[algorithm]
name = "FlexGT"
gamma = 0.1
tau = 2
snapshot = "last"
[problem]
name = "ridge"
n = 8
p = 3
[topology]
name = "unreliable"
link = 0.1
topology = {name = "ring"}
"""


def test_a_file_names_the_objects(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    (run,) = load_spec(path).runs
    made = build_run(run)
    assert made.algorithm == stgt.FlexGT(gamma=0.1, tau=2, snapshot="last")
    assert (made.problem.n, made.problem.p, made.topology.n) == (8, 3, 8), "the topology takes n from the problem"
    assert made.topology.random
    assert (run.rounds, run.target) == (9, 0.5)


def test_what_is_written_is_read_back(tmp_path):
    spec = Spec(experiment="mine", runs=(RunSpec.model_validate(RUN), RunSpec.model_validate({**RUN, "x0": "optimum"})))
    path = tmp_path / "spec.toml"
    path.write_text(spec_text(spec))
    assert load_spec(path) == spec


def test_given_matrices(tmp_path):
    W = [[0.5, 0.5], [0.5, 0.5]]
    run = RunSpec.model_validate(
        {**RUN, "problem": {"name": "ridge", "n": 2}, "topology": {"name": "from_matrix", "W": W}}
    )
    np.testing.assert_array_equal(build_run(run).topology.matrix(0), W)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": {"name": "SGTG"}}, "algorithm.name='SGTG': choose from"),
        ({"problem": {"name": "lasso"}}, "problem.name='lasso': choose from"),
        ({"topology": {"name": "web"}}, "topology.name='web': choose from"),
        (
            {"algorithm": {"name": "STGT", "gama": 0.1}},
            r"algorithm.gama: STGT takes gamma, tau, beta, adjoint; did you mean 'gamma'\?",
        ),
        ({"algorithm": {"name": "STGT", "gamma": -1.0}}, "gamma=-1"),
        ({"topology": {"name": "server", "sampled": 9}}, "sampled=9"),
        ({"topology": {"name": "circulant"}}, "topology.hops was left out"),
        ({"problem": {"name": "logistic", "n": 4}}, "problem.data was left out"),
        ({"problem": {"name": "logistic", "n": 4, "data": "a9a"}}, "data_dir was left out"),
        ({"problem": {"name": "logistic", "n": 4, "data": "a10a"}}, "data='a10a': data_dir was left out"),
    ],
)
def test_a_wrong_entry_is_named(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        build_run(RunSpec.model_validate({**RUN, **change}))
    assert str(caught.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", "is not TOML"),
        ("rounds = 3", "algorithm was left out: give"),
        (TEXT.replace("rounds = 9", "seeds = [4, 2, 4]"), "seeds.*: it has 4 more than once: give each seed once"),
        (TEXT.replace("rounds = 9", "rounds = -1"), "rounds=-1: give a whole number from 0"),
        (TEXT.replace("rounds = 9", "round = 9"), "round is not known: choose from .*did you mean 'rounds'"),
        (TEXT.replace("target = 0.5", "target = 0"), "target=0: give a finite number above 0"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        load_spec(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        load_spec(tmp_path / "none.toml")
