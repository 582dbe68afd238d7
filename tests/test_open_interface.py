"""A user's seventeenth method: what it declares is handed over, what it does not is a sentence in every engine."""

import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

import stgt
from catalogue import instances, quadratic
from stgt._internal.registry import ALGORITHMS
from stgt.algorithms import MessageVar, StateVar
from stgt.algorithms.declare import PARTS
from stgt.testing.engines import flower_difference, torch_difference

N, P = 4, 2
RING, SERVER = stgt.topology.ring(N), stgt.topology.server(N, sampled=2)


@stgt.register
@dataclass(frozen=True, kw_only=True)
class Peek(stgt.Algorithm):
    """Gossip that reads one part of a round for show, whether it says so or not."""

    part: str = "end"
    said: tuple[str, ...] = ()

    def spec(self):
        return stgt.RoundSpec(reads={"end", *self.said}, state=[StateVar("x", at_server=True)])

    def message(self, state, local):
        getattr(local, self.part)
        return {"x": local.end}


def engines(algorithm):
    """The same three rounds on every engine."""
    problem = quadratic(N, P)
    return {
        "numpy": lambda: stgt.simulate(algorithm, problem, RING, 3, engine="numpy"),
        "jax": lambda: stgt.simulate(algorithm, problem, RING, 3, dtype="float64"),
        "theory": lambda: stgt.theory.spectral_radius(algorithm, problem, RING),
        "torch": lambda: torch_difference(algorithm, problem, RING, 3),
        "flower": lambda: flower_difference(algorithm, problem, SERVER, 3),
    }


def refusal(run):
    with pytest.raises(ValueError, match=r"\.$") as caught:
        run()
    return str(caught.value)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "end"])
def test_reading_what_is_not_declared_fails_alike_in_all_engines(part):
    for engine, run in engines(Peek(gamma=0.1, part=part)).items():
        words = refusal(run)
        # Flower's clients and server report a fault with whose it is before it.
        assert words.endswith(f"Peek reads {part!r} of a round, which it does not declare: add it to its reads."), (
            engine
        )


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.sampled(3)
def test_what_is_declared_is_handed_over(part):
    algorithm = Peek(gamma=0.1, part=part, said=(part,))
    runs = engines(algorithm)
    np.testing.assert_allclose(runs["jax"]().x, runs["numpy"]().x, rtol=0, atol=1e-12)
    if part != "start_gradient":
        assert runs["torch"]() <= 1e-12
    if part not in ("first", "last", "start_gradient"):
        assert runs["flower"]() <= 1e-12


@dataclass(frozen=True, kw_only=True)
class Remember(stgt.Algorithm):
    """It keeps what other fields were: the round's start and end, and what it kept of the end before."""

    def spec(self):
        return stgt.RoundSpec(reads={"start", "end"}, state=[StateVar("began"), StateVar("ended"), StateVar("before")])

    def correction(self, state, x):
        return 0.1 * (state["ended"] - state["before"])

    def merge(self, state, local, mixed):
        return {"x": mixed["x"], "began": local.start, "ended": local.end, "before": state["ended"]}


def test_a_field_may_become_what_another_one_was():
    runs = engines(Remember(gamma=0.1, tau=2))
    np.testing.assert_allclose(runs["jax"]().state["before"], runs["numpy"]().state["before"], rtol=0, atol=1e-12)
    assert runs["torch"]() <= 1e-12


def own(declared=None, **parts):
    """A method made of ST-GT's spec and parts but for those given."""
    if declared is not None:
        parts["spec"] = lambda self: replace(stgt.STGT.spec(self), **declared)
    return dataclass(frozen=True, kw_only=True)(type("Own", (stgt.STGT,), {**parts, "label": "Own"}))


FAULTS = {
    "a state's field": (
        own(correction=lambda self, state, x: state["d"]),
        "Own reads state['d'], which is not there: if a node keeps it, add StateVar('d') to its state.",
    ),
    "the round's start in the state": (
        own(correction=lambda self, state, x: x - state["x"]),
        "Own reads state['x'], the round's start, which it does not declare: add 'start' to its reads.",
    ),
    "a mixture's field": (
        own(merge=lambda self, state, local, mixed: {"x": mixed["x"], "c": mixed["y"]}),
        "Own reads mixed['y'], which it does not send: add MessageVar('y').",
    ),
    "a field forgotten in merge": (
        own(merge=lambda self, state, local, mixed: {"x": mixed["x"]}),
        "Own's merge does not return 'c': return x, c.",
    ),
    "a field too many in merge": (
        own(merge=lambda self, state, local, mixed: {"x": mixed["x"], "c": state["c"], "d": state["c"]}),
        "Own's merge returns 'd', which it does not declare: add it to its state.",
    ),
    "a message not declared": (
        own(message=lambda self, state, local: {"x": local.end, "z": local.end, "u": local.end}),
        "Own's message returns 'u', which it does not declare: add it to its messages.",
    ),
    "a message left out": (
        own(message=lambda self, state, local: {"x": local.end}),
        "Own's message does not return 'z': return x, z.",
    ),
    "no dict": (
        own(message=lambda self, state, local: local.end),
        "Own's message returns a {type}: return a dict of vectors by name.",
    ),
    "more than the mixture": (
        own(merge=lambda self, state, local, mixed: {"x": 1.0 * mixed["x"], "c": state["c"]}),
        "Own's merge changes mixed['x'] before it stores it: remove replaces=True from MessageVar('x') in its "
        "messages.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_in_every_engine(fault):
    kind, sentence = FAULTS[fault]
    for engine in ("numpy", "jax", "torch"):
        words = refusal(engines(kind(gamma=0.1, tau=2))[engine])
        kinds = {"numpy": "ndarray", "jax": "DynamicJaxprTracer", "torch": "Tensor"}
        assert words == sentence.format(type=kinds[engine]), engine


def test_a_worker_cannot_wait_for_what_is_mixed_where_a_server_holds_the_model():
    @stgt.register(name="Waiting")
    @dataclass(frozen=True, kw_only=True)
    class Waiting(stgt.ScaffoldPlus):
        def merge(self, state, local, mixed):
            return {"x": mixed["x"], "c": mixed["c"], "own": state["own"] + mixed["c"]}

        label = "Waiting"

    words = refusal(lambda: flower_difference(Waiting(gamma=0.1), quadratic(N, P), SERVER, 2))
    assert "Waiting computes a client's variable from the mixed values" in words


def test_a_message_that_the_server_cannot_work_out():
    @stgt.register(name="Secretive")
    @dataclass(frozen=True, kw_only=True)
    class Secretive(stgt.ScaffoldPlus):
        def message(self, state, local):
            return {"x": local.end, "c": state["own"]}

        label = "Secretive"

    words = refusal(lambda: flower_difference(Secretive(gamma=0.1), quadratic(N, P), SERVER, 2))
    assert words == (
        "Secretive reads state['own'] for its message, which the server does not have: send what a server can compute."
    )


def test_a_message_that_is_not_what_it_declares_is_not_sent_early():
    import torch

    from stgt.algorithms import Linear
    from stgt.torch.buckets import make_buckets
    from stgt.torch.local_steps import Chunk, LocalSteps
    from stgt.torch.overlap import _DirectionHalf

    wrong = own({"messages": [MessageVar("x", value=Linear(start=1.0)), MessageVar("z", value=Linear(direction=1.0))]})
    for kind in (stgt.STGT, wrong):
        parameter = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        group = {"params": [parameter], "lr": 0.1}
        steps = LocalSteps(kind(tau=1), make_buckets([group]), plain=True)
        parameter.grad = torch.full((5,), 2.0, dtype=torch.float64)
        with torch.no_grad():
            steps.apply([group], first=True)
        part = slice(0, steps.buckets[0].size)
        late = _DirectionHalf(Chunk(steps, 0, steps.buckets[0], part, 1, 0, 1.0, True), {})
        if kind is stgt.STGT:
            np.testing.assert_allclose(late.message()["direction"][:5], 2.0, rtol=0, atol=1e-12)
            continue
        with pytest.raises(ValueError, match=r"^early=True: Own declares 'x' to be Linear\(.*\), and its message is"):
            late.message()


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"reads": frozenset({"strat"})}, r"reads has 'strat': choose from 'start', 'end', .*\."),
        ({"reads": "end"}, r"reads='end': give a set of names, such as .*\."),
        ({"state": ("c",)}, r"state=\('c',\): give a list of StateVar, such as \[StateVar\('c'\)\]\."),
        ({"messages": (MessageVar("x"), MessageVar("x"))}, r"messages has 'x' twice: give each name once\."),
        ({"messages": ()}, r"messages is empty: .*\."),
    ],
)
def test_a_wrong_declaration_is_one_sentence(parts, sentence):
    with pytest.raises(ValueError, match=f"^Own's spec: {sentence}$"):
        own(parts)(gamma=0.1)


def test_a_method_that_is_not_a_frozen_dataclass():
    class Plain(stgt.STGT):
        beta: float = 0.5

    sentence = r"^Plain is not a frozen dataclass: put @dataclass\(frozen=True, kw_only=True\) above it\.$"
    with pytest.raises(ValueError, match=sentence):
        Plain(gamma=0.1)
    with pytest.raises(ValueError, match=sentence):
        stgt.register(Plain)


@pytest.mark.parametrize("value", [True, np.True_])
@pytest.mark.parametrize("name", ["gamma", "tau"])
def test_a_flag_is_no_number(name, value):
    with pytest.raises(ValueError, match=rf"^{name}=.*True_?: give a"):
        stgt.STGT(**{"gamma": 0.1, name: value})


def test_a_matrix_is_no_topology():
    with pytest.raises(
        ValueError, match=r"^topology is an array of shape \(4, 4\): give stgt\.topology\.from_matrix\(W\)\.$"
    ):
        stgt.simulate(stgt.STGT(gamma=0.1), quadratic(N, P), np.eye(N), 1)


def test_a_users_real_numbers_are_swept_and_checked():
    @dataclass(frozen=True, kw_only=True)
    class Damped(stgt.STGT):
        beta: float = 1

        def merge(self, state, local, mixed):
            return {"x": mixed["x"], "c": state["c"] + self.beta * (mixed["z"] - local.direction)}

    problem = quadratic(N, P)
    traces = stgt.sweep(Damped(gamma=0.1), problem, RING, 5, grid={"beta": [1, 0.5]}, dtype="float64")
    for trace in traces:
        plain = stgt.simulate(trace.algorithm, problem, RING, 5, engine="numpy")
        np.testing.assert_allclose(trace.x, plain.x, rtol=0, atol=1e-12)
    assert [trace.algorithm.beta for trace in traces] == [1.0, 0.5]
    same = stgt.simulate(stgt.STGT(gamma=0.1), problem, RING, 5, dtype="float64")
    np.testing.assert_allclose(traces[0].x, same.x, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match=r"^beta='half': give a number above 0 and up to 1\.$"):
        Damped(gamma=0.1, beta="half")


EQUAL = {
    "K-GT at its defaults": (
        stgt.KGT(gamma=0.05, tau=3),
        RING,
        "K-GT with these options is ST-GT: their curves coincide.",
    ),
    "Scaffold on a peer graph": (
        stgt.Scaffold(gamma=0.05, tau=3),
        RING,
        "Scaffold with these options without a server is ST-GT: their curves coincide.",
    ),
    "Scaffold⁺ on a peer graph": (
        stgt.ScaffoldPlus(gamma=0.05, tau=3),
        RING,
        "Scaffold⁺ with these options without a server is ST-GT: their curves coincide.",
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_trace_says_that_its_method_is_another_one(name):
    algorithm, graph, note = EQUAL[name]
    problem = quadratic(N, P, noise=0.1)
    trace = stgt.simulate(algorithm, problem, graph, 6, engine="numpy")
    assert trace.notes == (note,)
    assert note in repr(trace)
    same = stgt.simulate(stgt.STGT(gamma=0.05, tau=3), problem, graph, 6, engine="numpy")
    np.testing.assert_allclose(trace.x, same.x, rtol=0, atol=1e-13)
    assert same.notes == ()


@pytest.mark.parametrize("name", instances())
def test_a_note_is_true(name):
    """Whatever a method says it is the same as, is: the first word names a label of the catalogue's."""
    algorithm = instances()[name]
    for graph in (RING, SERVER):
        other = algorithm.same_as(graph.has_server)
        if not other:
            continue
        labels = {"ST-GT": stgt.STGT, "DSGT": stgt.DSGT, "D-PSGD (ATC)": lambda **o: stgt.DPSGD(atc=True, **o)}
        labels |= {"FlexGT (last)": lambda **o: stgt.FlexGT(snapshot="last", **o), "FedAvg": stgt.FedAvg}
        same = labels[other](gamma=algorithm.gamma, tau=algorithm.tau)
        problem = quadratic(N, P, noise=0.1)
        x, y = (stgt.simulate(one, problem, graph, 6, engine="numpy").x for one in (algorithm, same))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


# -- names --------------------------------------------------------------------------------------------------------


def test_names_are_registered_once():
    @dataclass(frozen=True, kw_only=True)
    class STGT(stgt.STGT):
        pass

    with pytest.raises(
        ValueError, match=r"^algorithm 'STGT' is registered already, by stgt\.algorithms\.tracking: give yours"
    ):
        stgt.register(STGT)
    assert stgt.register(name="mine")(STGT) is STGT
    assert ALGORITHMS.find("mine", "name") is STGT
    assert ALGORITHMS.name_of(STGT) == "mine"


def test_what_cannot_be_registered():
    def nothing(n):
        return n

    for thing in (nothing, 3):
        with pytest.raises(
            ValueError, match=r"^register was given .*: give a class derived from stgt\.Algorithm or stgt\.Oracle"
        ):
            stgt.register(thing)
    with pytest.raises(
        ValueError, match=r"^int is neither an algorithm nor an oracle: derive it from stgt\.Algorithm or"
    ):
        stgt.register(int)


def test_packages_register_by_entry_points(tmp_path):
    """A package on the path is listed without being loaded, and loaded when it is asked for; never for Flower."""
    (tmp_path / "fine_methods.py").write_text(
        "from dataclasses import dataclass\nimport stgt\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Fine(stgt.STGT):\n    pass\n"
    )
    info = tmp_path / "fine_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fine-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stgt.algorithms]\nFine = fine_methods:Fine\n")
    code = (
        "import sys, stgt\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stgt._internal.registry import ALGORITHMS\n"
        "assert 'Fine' in stgt.list_algorithms() and 'fine_methods' not in sys.modules\n"
        "try:\n    ALGORITHMS.find('Fine', 'name', installed=False)\n"
        "except ValueError as error:\n    assert 'fine_methods' not in sys.modules and 'Fine' in str(error)\n"
        "else:\n    raise SystemExit('it was found')\n"
        "assert ALGORITHMS.find('Fine', 'name')(gamma=0.1).gamma == 0.1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_client_runs_only_what_its_script_registered():
    from stgt._internal.serialize import from_plain, registered, to_plain

    find = registered(ALGORITHMS)
    assert from_plain(to_plain(Peek(tau=3, part="end")), find) == Peek(tau=3, part="end")
    for table in ({"name": "os.system"}, {"name": "Outer", "method": {"name": "os.system"}}):
        with pytest.raises(ValueError, match=r"^(method\.)?name='os\.system': choose from"):
            from_plain(table, find)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 / 0", r"^script .*wrong\.py failed \(ZeroDivisionError: division by zero\): correct the script\.$"),
        ("def f(:", r"^script .*wrong\.py failed \(SyntaxError: .*\): correct the script\.$"),
    ],
)
def test_a_script_that_fails(tmp_path, text, sentence):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        stgt._internal.registry.import_script(tmp_path / "wrong.py")


def test_hyper_parameters_that_jax_cannot_take():
    @dataclass(frozen=True, kw_only=True)
    class Listed(stgt.STGT):
        words: object = None

    algorithm = Listed(gamma=0.1, words={"a"})
    stgt.simulate(algorithm, quadratic(N, P), RING, 1, engine="numpy")
    with pytest.raises(ValueError, match=r"^words of Listed is a set, which JAX cannot compile for: "):
        stgt.simulate(algorithm, quadratic(N, P), RING, 1)


def test_torch_takes_registered_topologies_by_name():
    from stgt.torch.validate import topology_of

    @stgt.register
    def two_rings(n: int) -> stgt.Topology:
        return stgt.topology.ring(n)

    assert topology_of("two_rings", 4).n == 4
    with pytest.raises(ValueError, match=r"^topology='relay' needs more than a name: give stgt\.topology\.relay\(…\)"):
        topology_of("relay", 4)


@pytest.mark.thorough
def test_a_second_value_does_not_compile_again():
    """Another stepsize, seed, data or number of rounds reuses the program; another number of runs compiles."""
    from stgt.simulator import simulator

    def run(gamma, seeds, rounds, data):
        stgt.simulate(stgt.STGT(gamma=gamma, tau=2), quadratic(N, P, 0.1, data), RING, rounds, seeds=seeds)
        return simulator._advance._cache_size()

    first = run(0.1, [0, 1], 3, 0)
    assert run(0.2, [5, 9], 7, 1) == first
    assert run(0.2, [5, 9, 11], 7, 1) == first + 1
