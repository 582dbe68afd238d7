"""The JSON schema accepts the specs that the library reads, and refuses those that it refuses."""

import json
import tomllib
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from stgt.algorithms import list_algorithms
from stgt.cli import app
from stgt.oracles import list_oracles
from stgt.problems import logistic
from stgt.study.spec.schema import argument_descriptions, spec_schema
from stgt.topology import from_edges

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = """
rounds = 9
algorithm = {name = "STGT", gamma = 0.1}
problem = {name = "ridge", n = 4}
topology = {name = "ring"}
"""


@cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = spec_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def refusals(text: str, kind: str = "run") -> list[str]:
    return [error.json_path for error in validator(kind).iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize(
    ("kind", "name"), [("run", "study/spec.toml"), ("train", "mnist.toml"), ("train", "cifar10.toml")]
)
def test_the_examples_are_accepted(kind, name):
    assert refusals((EXAMPLES / name).read_text(), kind) == []


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        BASE.replace("gamma = 0.1", "gamma = {schedule = 'cosine', start = 0.1, rounds = 9}"),
        BASE.replace('"STGT"', '"Outer", method = {name = "LED"}'),
        BASE.replace('"ring"', '"unreliable", link = 0.1, topology = {name = "ring"}'),
        BASE.replace('"ring"', '"from_edges", edges = [[0, 1]]'),
        BASE.replace('"ridge"', '"logistic", data = "a.csv", label = "b", node = 0, standardise = true'),
        BASE + "seeds = [1, 2]\nmetrics = ['loss']\noracle = {name = 'Minibatch', batch = 2}\nnetwork.latency = 0.1\n",
        BASE + "[grid]\ngamma = [0.1]\n[[runs]]\nlabel = 'a'\n[[runs]]\nalgorithm.name = 'LED'\n",
        "rounds = 9\n[[runs]]\nalgorithm = {name = 'STGT'}\nproblem.name = 'ridge'\ntopology.name = 'ring'\n",
    ],
)
def test_what_can_be_read_is_accepted(text):
    assert refusals(text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (BASE.replace("rounds", "round"), "$"),
        (BASE.replace("rounds = 9", "rounds = -1"), "$.rounds"),
        (BASE.replace("rounds = 9", "rounds = '9'"), "$.rounds"),
        (BASE.replace("STGT", "SGTG"), "$.algorithm.name"),
        (BASE.replace("gamma", "gama"), "$.algorithm"),
        (BASE.replace("gamma = 0.1", "gamma = 'small'"), "$.algorithm.gamma"),
        (BASE.replace("gamma = 0.1", "gamma = {schedule = 'cosin'}"), "$.algorithm.gamma"),
        (BASE.replace('"STGT"', '"Outer", method = {name = "LEDD"}'), "$.algorithm.method.name"),
        (BASE.replace("ridge", "rigde"), "$.problem.name"),
        (BASE.replace("n = 4", "n = 'four'"), "$.problem.n"),
        (BASE.replace('"ring"', '"from_networkx"'), "$.topology.name"),
        (BASE.replace('topology = {name = "ring"}', ""), "$"),
        (BASE + "oracle = {name = 'Minibatch', batch = 'all'}", "$.oracle.batch"),
        (BASE + "metrics = ['speed']", "$.metrics"),
        (BASE + "network = {speed = 1}", "$.network"),
        (BASE + "[[runs]]\nlable = 'a'", "$.runs[0]"),
        (BASE + "[[runs]]\nalgorithm = {name = 'STGT', gama = 1}", "$.runs[0].algorithm"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is(text, path):
    assert any(found.startswith(path) for found in refusals(text)), refusals(text)


def test_names_and_words_come_from_what_is_known():
    definitions = spec_schema()["$defs"]
    assert sorted(definitions["algorithm"]["properties"]["name"]["enum"]) == sorted(list_algorithms())
    assert sorted(definitions["oracle"]["properties"]["name"]["enum"]) == list_oracles()
    words = argument_descriptions(logistic)
    assert words["l2"] == "adds (l2/2)‖x‖², and makes the problem strongly convex."
    assert words["width"].endswith("share a compiled program."), "lines that go on"
    assert set(argument_descriptions(from_edges)) == {"edges", "n", "weights"}


def test_the_command_prints_it_with_the_user_s_own_names():
    plain = CliRunner().invoke(app, ["schema", "train"])
    assert json.loads(plain.output) == json.loads(json.dumps(spec_schema("train")))
    refused = CliRunner().invoke(app, ["schema", "training"])
    assert str(refused.exception) == "KIND='training': choose from 'run', 'train'; did you mean 'train'?"


def test_list_has_a_line_on_each():
    short = CliRunner().invoke(app, ["list"]).output
    listed = short[short.index("oracles:") :].split("\n\n")[0]
    assert all(name in listed for name in ("Exact", "Minibatch", "Noisy", "ProblemNoise", "SAGA", "SVRG"))
    long = " ".join(CliRunner().invoke(app, ["list", "topologies"]).output.split())
    assert "Every node receives from all others" in long
    listed = json.loads(CliRunner().invoke(app, ["list", "problems", "--json"]).output)
    assert list(listed) == ["problems"]
    assert listed["problems"]["least_squares"].startswith("Linear regression, f_i(x) =")
    assert sorted(json.loads(CliRunner().invoke(app, ["list", "--json"]).output)) == [
        "algorithms", "datasets", "metrics", "models", "oracles", "problems", "topologies",
    ]  # fmt: skip
