"""One table of which engine supports which feature of a round. It also writes the error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stgt.algorithms.declare import RoundSpec


class Graph(Protocol):
    """The properties of a topology that decide."""

    @property
    def name(self) -> str: ...
    @property
    def doubly_stochastic(self) -> bool: ...
    @property
    def symmetric(self) -> bool: ...
    @property
    def has_push(self) -> bool: ...
    @property
    def has_server(self) -> bool: ...
    @property
    def participation(self) -> float: ...
    @property
    def strangers(self) -> Any: ...


class EngineTraits(NamedTuple):
    """An engine in an error message.

    Attributes:
        name: as it appears in a message.
        example: a method as you give it to this engine.
        stepsize: what replaces `gamma`; "" if the method has it.
        instead: what to do if a feature is not supported.
    """

    name: str
    example: str = "stgt.STGT(gamma=0.1, tau=10)"
    stepsize: str = ""
    instead: str = ""


ENGINES = {
    "reference": EngineTraits("the reference"),
    "simulator": EngineTraits("the simulator"),
    "theory": EngineTraits("the exact theory", instead="simulate it, or ask about a method without it"),
    "trainer": EngineTraits(
        "the trainer",
        "stgt.STGT(tau=25)",
        "the optimiser's lr",
        "use STGT, KGT, FlexGT, DSGT, DIGing, DPSGD, FedAvg, FedProx, Scaffold (option II), ScaffoldPlus or ProxSkip",
    ),
    "flower": EngineTraits(
        "Flower, whose server has only a client's last model,",
        "stgt.ScaffoldPlus(tau=10)",
        "the clients' lr",
        "use ScaffoldPlus, Scaffold (option II, no warm start), FedAvg, FedProx, FedDyn, DiLoCo, STGT, LED or "
        "DPSGD(atc=True)",
    ),
}


@dataclass(frozen=True)
class Feature:
    """Something that a round may need.

    Attributes:
        needed: words that follow the method's name, if this round needs the feature on this graph; "" if not.
        lacking: the engines without the feature.
        instead: what to do there, if it differs from the engine's advice.
    """

    needed: Callable[[RoundSpec, Graph], str]
    lacking: tuple[str, ...]
    instead: str = ""


def _gradients(spec: RoundSpec, graph: Graph) -> str:
    return next((f"reads {name!r} of a round" for name in ("first", "last") if name in spec.reads), "")


def _kept_back(spec: RoundSpec, graph: Graph) -> str:
    """Does the server keep a field that it does not send, while some nodes do not take part in a round?"""
    hidden = set(spec.server_fields) - {sent.name for sent in spec.messages}
    return f"keeps {min(hidden)!r} at the server and does not send it" if hidden and graph.participation < 1 else ""


def _more_than_mixing(spec: RoundSpec, graph: Graph) -> str:
    """Does each node change what it received? If the model is at the server, the method's `serve` does that instead."""
    replaced = {sent.name for sent in spec.messages if sent.replaces}
    names = () if "x" in spec.server_fields else ("x", *spec.server_fields)
    stepped = next((name for name in names if name not in replaced), None)
    return "" if stepped is None else f"changes the mixed {stepped!r} at each client before it stores it"


FEATURES = (
    Feature(
        _more_than_mixing,
        ("flower",),
        "use one whose model is at the server, such as ScaffoldPlus, DiLoCo or Outer(ScaffoldPlus(tau=20)), or one "
        "that keeps the mixture, such as STGT, LED or DPSGD(atc=True)",
    ),
    Feature(lambda spec, graph: "exchanges twice a round" if spec.second_messages else "", ("trainer", "flower")),
    Feature(
        lambda spec, graph: "takes an additional gradient at a round's start" if "start_gradient" in spec.reads else "",
        ("trainer", "flower"),
    ),
    Feature(
        lambda spec, graph: "" if spec.oracle is None else f"needs the oracle {spec.oracle}", ("trainer", "flower")
    ),
    Feature(
        lambda spec, graph: f"mixes {spec.mixing_steps} times a round" if spec.mixing_steps > 1 else "",
        ("trainer", "flower"),
    ),
    Feature(_gradients, ("flower",)),
    Feature(lambda spec, graph: "needs the first gradient" if spec.needs_initial_gradient else "", ("flower",)),
    Feature(
        lambda spec, graph: "" if spec.communication_probability is None else "communicates at random", ("flower",)
    ),
    Feature(
        _kept_back,
        ("trainer",),
        "let the server call all nodes, or use stgt.flower, whose server is a separate process",
    ),
    Feature(
        lambda spec, graph: "" if spec.linear else "makes a step that is not linear in the models and gradients",
        ("theory",),
    ),
)


def refusal(label: str, spec: RoundSpec, graph: Graph, engine: str) -> str:
    """Why the engine does not run the method on this graph, as an error message; "" if it does."""
    return next(_refusals(label, spec, graph, engine), "")


def _refusals(label: str, spec: RoundSpec, graph: Graph, engine: str) -> Iterator[str]:
    name, _, _, instead = ENGINES[engine]
    for feature in FEATURES:
        if engine in feature.lacking and (needed := feature.needed(spec, graph)):
            yield f"{label} {needed}, which {name} does not support: {feature.instead or instead}."
    # Independent of the engine: the method does not converge on this graph.
    allowed = {"never": False, "server": graph.has_server, "any": True}[spec.row_stochastic]
    pushes = any(sent.pushed for sent in (*spec.messages, *spec.second_messages))
    if graph.has_push and not pushes and not allowed:
        yield (
            f"{label} sends no message for the column-stochastic matrix of {graph.name}, whose other matrix is only "
            "row-stochastic: use PushPull, STGT (without adjoint) or another tracker, or FedAvg."
        )
    if not graph.doubly_stochastic and not graph.has_push and not allowed:
        yield (
            f"{label} needs doubly stochastic W_r here, and {graph.name} is only row-stochastic: use another topology, "
            f"such as {'push_pull(R, C)' if pushes else 'server(n, sampled=s)'}. Scaffold and ScaffoldPlus run on "
            "relay, FedAvg on any topology."
        )
    if graph.strangers is not None and not (graph.has_server and "x" in spec.server_fields):
        one, other = graph.strangers
        advice = "let the server call at least two nodes" if graph.has_server else "connect them by links"
        yield f"nodes {one} and {other} of {graph.name} never exchange anything, not even through others: {advice}."
    if spec.symmetric_only and not graph.symmetric:
        yield (
            f"{label} is for symmetric W, and {graph.name} is directed: there it may diverge at every stepsize. Use "
            "STGT, or a symmetric topology, such as from_matrix((W + W.T) / 2)."
        )
