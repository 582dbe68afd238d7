"""Several runs in a file, what a command line sets, and what is made of oracles, schedules, grids and files."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

import stgt
from stgt.simulator.run import ENGINES
from stgt.study import build_all, build_run, load_spec, spec_text
from stgt.study.spec import Named, build_algorithm, build_oracle
from stgt.study.spec.runs import RunSpec, Spec
from stgt.study.spec.training import load_training

ROOT = Path(__file__).parents[2]
SEVERAL = """
name = "mine"
rounds = 9
seeds = [3, 5]
by = "loss"
[problem]
name = "ridge"
n = 4
p = 2
[topology]
name = "ring"
[algorithm]
tau = 3
[grid]
gamma = [0.1, 0.2]
beta = [0.5]
[network]
latency = 0.1
[[runs]]
algorithm = {name = "STGT"}
[[runs]]
algorithm = {name = "DPSGD", tau = 5}
topology = {name = "complete"}
problem = {p = 3}
rounds = 7
label = "second"
"""


@pytest.fixture
def several(tmp_path):
    path = tmp_path / "several.toml"
    path.write_text(SEVERAL)
    return path


def written(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


# -- what runs share ----------------------------------------------------------------------------------------------


def test_what_stands_outside_holds_unless_a_run_says_otherwise(several):
    spec = load_spec(several)
    one, two = spec.runs
    assert (spec.name, spec.by, spec.network.latency, spec.network.bandwidth) == ("mine", "loss", 0.1, None)
    assert one.algorithm == Named(name="STGT", tau=3)
    assert two.algorithm == Named(name="DPSGD", tau=5)
    assert one.topology == Named(name="ring")
    assert two.topology == Named(name="complete"), "another name takes its place"
    assert two.problem == Named(name="ridge", n=4, p=3), "without a name it is merged"
    assert (one.rounds, two.rounds, two.label) == (9, 7, "second")
    assert one.seeds == two.seeds == (3, 5)
    assert one.seed_count == 2
    assert one.grid == two.grid == {"gamma": [0.1, 0.2], "beta": [0.5]}


def test_a_table_of_the_same_name_is_merged_also_within_others(tmp_path):
    text = """
[algorithm]
name = "Outer"
momentum = 0.9
method = {name = "STGT", beta = 0.5}
gamma = {schedule = "cosine", start = 0.1, rounds = 9}
[problem]
name = "ridge"
n = 4
[topology]
name = "ring"
[[runs]]
algorithm.method = {name = "STGT", adjoint = true}
[[runs]]
algorithm.method = {name = "LED"}
algorithm.gamma = {schedule = "step", start = 0.2, every = 3}
[[runs]]
algorithm = {name = "STGT"}
"""
    path = written(tmp_path, text)
    first, second, third = (made.algorithm for made in build_all(load_spec(path, ["runs.2.algorithm.gamma=0.3"]), path))
    cosine, step = stgt.schedules.cosine(0.1, rounds=9), stgt.schedules.step(0.2, every=3)
    assert first == stgt.Outer(stgt.STGT(beta=0.5, adjoint=True), momentum=0.9, gamma=cosine)
    assert second == stgt.Outer(stgt.LED(), momentum=0.9, gamma=step)
    assert third == stgt.STGT(gamma=0.3)


def test_a_training_shares_in_the_same_words(tmp_path):
    text = (ROOT / "examples" / "mnist.toml").read_text()
    path = written(tmp_path, f'{text}\n[[runs]]\nlabel = "a"\n[[runs]]\nlabel = "b"\noptimizer.lr = 0.1\n')
    one, two = load_training(path, ["rounds=3", "runs.0.optimizer.momentum=0.5"]).runs
    assert (one.rounds, two.rounds) == (3, 3)
    assert one.optimizer == Named(name="SGD", lr=0.025, momentum=0.5)
    assert two.optimizer == Named(name="SGD", lr=0.1)
    with pytest.raises(ValueError, match=r"spec .*: data\.partition='labl': choose from .*did you mean 'label'\?"):
        load_training(path, ["data.partition=labl"])


def test_of_the_grid_a_method_has_what_it_knows(several):
    spec = load_spec(several)
    one, two = build_all(spec, several)
    assert one.grid == {"gamma": [0.1, 0.2], "beta": [0.5]}
    assert two.grid == {"gamma": [0.1, 0.2]}, "D-PSGD has no beta"
    with pytest.raises(ValueError, match=r"grid\.betta is not known: choose from .*did you mean 'beta'\?"):
        build_all(load_spec(several, ["grid.betta=[1]"]), several)
    with pytest.raises(ValueError, match=r"runs\.1\.grid\.beta: D-PSGD has gamma, tau, atc"):
        build_all(load_spec(several, ["runs.1.grid={beta = [0.25]}"]), several)
    made = build_all(load_spec(several, ["grid.gamma=[{schedule='inverse', start=0.1}]"]), several)[0]
    assert made.grid["gamma"] == [stgt.schedules.inverse(0.1)]


# -- what a command line sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "found"),
    [
        ("rounds=3", lambda spec: [run.rounds for run in spec.runs] == [3, 3]),
        ("runs.1.rounds=3", lambda spec: [run.rounds for run in spec.runs] == [9, 3]),
        ("algorithm.tau=4", lambda spec: [run.algorithm.arguments["tau"] for run in spec.runs] == [4, 4]),
        ("algorithm.snapshot=last", lambda spec: spec.runs[0].algorithm.arguments["snapshot"] == "last"),
        ("label=a word or two", lambda spec: spec.runs[0].label == "a word or two"),
        ("label=x = 1", lambda spec: spec.runs[0].label == "x = 1"),
        ("label='3'", lambda spec: spec.runs[0].label == "3"),
        ("seeds=[1, 2]", lambda spec: spec.runs[0].seeds == (1, 2)),
        ("oracle.name=Exact", lambda spec: spec.runs[1].oracle == Named(name="Exact")),
        ("name=other", lambda spec: spec.name == "other"),
        ("network.bandwidth=1e6", lambda spec: spec.network.bandwidth == 1e6),
        ("problem.mu=0.5", lambda spec: spec.runs[1].problem.arguments["mu"] == 0.5),
    ],
)
def test_a_command_line_sets_entries(several, one, found):
    assert found(load_spec(several, [one]))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ("rounds", r"sets='rounds': give key=value, such as algorithm\.gamma=0\.1\."),
        ("=3", "sets='=3': give key=value"),
        ("a b=3", "sets='a b=3': give key=value"),
        ("roundz=3", r"sets='roundz=3': roundz is not known: choose from .*did you mean 'rounds'\?"),
        ("runs.2.rounds=3", r"sets='runs\.2\.rounds=3': runs are numbered 0 to 1"),
        ("runs.1=3", r"sets='runs\.1=3': runs are numbered"),
        ("runs.1.roundz=3", "roundz is not known"),
        ("rounds.a=3", "sets='rounds.a=3': rounds is not a table, but 9"),
        ("rounds=many", r"spec .*several\.toml: rounds='many': give a whole number from 0 to 1000000000\."),
        ("runs.1.rounds=-1", r"spec .*: runs\.1\.rounds=-1: give a whole number from 0 to 1000000000\."),
        ("rounds=nan", r"spec .*: rounds=nan: give a finite number\."),
    ],
)
def test_what_cannot_be_set_is_named(several, one, words):
    with pytest.raises(ValueError, match=words) as caught:
        load_spec(several, [one])
    assert "\n" not in str(caught.value)


# -- which entry is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["algorithm.tau=0"], r"several\.toml: algorithm\.tau=0: give"),  # of all runs
        (["runs.1.algorithm.tau=0"], r"several\.toml: runs\.1\.algorithm\.tau=0: give"),
        (["runs.0.algorithm.gama=1"], r"several\.toml: runs\.0\.algorithm\.gama: STGT takes"),
        (["topology.name=rign"], r"several\.toml: topology\.name='rign': choose from .*did you mean 'ring'\?"),
        (["oracle={name='Minibatch'}"], r"several\.toml: oracle Minibatch draws samples"),
        (["runs.0.topology={name='server', sampled=9}"], r"runs\.0\.topology\.sampled=9"),
        (["runs.0.topology={name='from_matrix', W=[[1.0]]}"], r"runs\.0\.topology has 1 nodes, but the problem has 4"),
        (["runs.1.metrics=['tracking']"], r"runs\.1\.metrics has 'tracking', but D-PSGD tracks no gradient"),
        (["by=sum_c"], r"by='sum_c', but D-PSGD keeps nothing"),
        (
            ["runs.0.algorithm.name=Outer", "runs.0.algorithm.method={name='STGT', beta=2}"],
            r"algorithm\.method\.beta=2",
        ),
        (["topology={name='unreliable', topology={name='rong'}}"], r"topology\.topology\.name='rong'"),
    ],
)
def test_an_error_names_file_run_and_entry(several, sets, words):
    with pytest.raises(ValueError, match=words):
        build_all(load_spec(several, sets), several)


def test_an_entry_error_of_a_single_object_names_the_entry_alone():
    with pytest.raises(stgt.InputError, match=r"^algorithm\.gamma=-1: give a finite number above 0\.$") as caught:
        build_algorithm(Named(name="STGT", gamma=-1))
    assert caught.value.path == ("algorithm", "gamma")


# -- oracles, schedules -------------------------------------------------------------------------------------------


def test_oracles_by_name():
    assert build_oracle(Named(name="Minibatch", batch=3)) == stgt.oracles.Minibatch(3)
    assert build_oracle(Named(name="SVRG")) == stgt.oracles.SVRG()
    assert build_oracle(Named(name="Noisy", variance=0.5)) == stgt.oracles.Noisy(0.5)
    for given, words in (
        (Named(name="Minbatch"), r"oracle\.name='Minbatch': choose from .*did you mean 'Minibatch'\?"),
        (Named(name="Noisy"), r"oracle\.variance was left out: Noisy needs it\."),
        (Named(name="SVRG", period=0), r"oracle\.period=0: give"),
        (Named(name="Exact", batch=1), r"oracle\.batch: Exact takes no arguments\."),
    ):
        with pytest.raises(ValueError, match=words):
            build_oracle(given)


@pytest.mark.parametrize(
    ("table", "schedule"),
    [
        (
            {"schedule": "cosine", "start": 0.1, "rounds": 5, "end": 0.01},
            stgt.schedules.cosine(0.1, rounds=5, end=0.01),
        ),
        ({"schedule": "step", "start": 0.1, "every": 5}, stgt.schedules.step(0.1, every=5)),
        ({"schedule": "inverse", "start": 0.1, "delay": 3}, stgt.schedules.inverse(0.1, delay=3)),
    ],
)
def test_stepsize_schedules(table, schedule):
    assert build_algorithm(Named(name="STGT", gamma=table)) == stgt.STGT(gamma=schedule)


def test_the_words_of_a_spec_are_those_of_the_library():
    """A spec may name every measurement and every engine that there is."""
    properties = RunSpec.model_json_schema()["properties"]
    assert properties["metrics"]["anyOf"][0]["items"]["enum"] == stgt.list_metrics()
    assert properties["engine"]["anyOf"][0]["enum"] == list(ENGINES)


# -- files --------------------------------------------------------------------------------------------------------

OWN = """
rounds = 3
[algorithm]
name = "STGT"
gamma = 0.1
[problem]
name = "least_squares"
data = "data/own.csv"
n = 3
[topology]
name = "unreliable"
link = 0.1
topology = {name = "from_edges", edges = "graph.csv"}
"""


def test_paths_are_relative_to_the_spec_and_a_resolved_spec_can_be_read_from_elsewhere(tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    (here / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (here / "data" / "own.csv").write_text("".join(f"{i},{i * i % 7},{2 * i + 1}\n" for i in range(9)))
    (here / "graph.csv").write_text("0,1\n1,2\n")
    monkeypatch.chdir(elsewhere)
    path = written(here, OWN)
    spec = load_spec(path)
    (made,) = build_all(spec, path)
    assert (made.problem.n, made.problem.p, made.topology.n) == (3, 2, 3)
    copy = written(elsewhere, spec_text(spec))
    assert tomllib.loads(copy.read_text())["problem"]["data"] == str(here / "data" / "own.csv")
    assert load_spec(copy) == spec
    assert build_all(load_spec(copy), copy)[0].problem is made.problem, "it is read once"


def test_a_file_that_has_changed_is_read_again(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "graph.csv").write_text("0,1\n1,2\n")
    data, path = tmp_path / "data" / "own.csv", written(tmp_path, OWN)
    values = []
    for slope in (1, 10):
        data.write_text("".join(f"{i},{i * i % 7},{slope * i}\n" for i in range(9)))
        values.append(build_run(load_spec(path).runs[0]).problem.optimum)
    np.testing.assert_allclose(values, [[1, 0], [10, 0]], atol=1e-10)  # label = slope · first column


def test_a_byte_order_mark_is_no_part_of_a_spec(tmp_path):
    path = written(tmp_path, "\ufeff" + SEVERAL)
    assert load_spec(path).name == "mine"


def test_seeds_may_be_a_list_and_are_written_back(tmp_path, several):
    spec = load_spec(several)
    assert load_spec(written(tmp_path, spec_text(spec))) == spec
    assert Spec.model_validate(spec.model_dump()) == spec


def test_the_study_of_wines_is_what_its_text_says():
    """130 wines of two cultivars, 13 measurements and an intercept, on 8 nodes with one cultivar each."""
    path = ROOT / "examples" / "study" / "spec.toml"
    spec = load_spec(path)
    made = build_all(spec, path)
    assert [type(one.algorithm) for one in made] == [stgt.STGT, stgt.LED, stgt.DPSGD, stgt.Scaffold]
    problem = made[0].problem
    assert (problem.n, problem.p, problem.counts.sum()) == (8, 14, 130)
    signs = np.sign(problem.data["signed"][:, :, -1])  # the intercept's column is the label's sign
    assert all(len(set(row[: problem.counts[i]])) == 1 for i, row in enumerate(signs))
    assert made[0].topology.matrix(0)[0, 4] > 0
    assert made[3].topology.has_server


@pytest.mark.parametrize("with_defaults", [False, True])
def test_what_runs_share_is_written_once(tmp_path, with_defaults):
    """And what is read back is the same spec."""
    spec = load_spec(written(tmp_path, SEVERAL))
    text = spec_text(spec, with_defaults)
    tables = tomllib.loads(text)
    assert len(tables["runs"]) == len(spec.runs) > 1
    assert tables["seeds"] == [3, 5]
    assert not any("seeds" in run or "grid" in run for run in tables["runs"])
    assert ("x0" in tables) == with_defaults
    assert load_spec(written(tmp_path, text)) == spec
