"""Which methods a server and workers that meet once a round can run, and the method as text for the workers."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np

from stgt._internal.registry import ALGORITHMS
from stgt.algorithms import Algorithm, Local, OuterStep
from stgt.algorithms.calls import hear, readable, serve
from stgt.algorithms.declare import VECTORS, Fields
from stgt.simulator.instance import check_algorithm_object, check_fit
from stgt.study.spec import Named, algorithm_of
from stgt.topology import Topology
from stgt.topology.structure import Sampled

KNOWN_TO_SERVER = frozenset({"start", "end", "direction", "gamma", "round", "participation"})  # of a worker's `Local`


def check_usable(algorithm: Algorithm, topology: Topology) -> None:
    """A ValueError unless the server can work every message out from a worker's last model alone.

    Its message may read what the server knows of a round, and of the state x and what lives at the server. x and what
    lives at the server must become what was mixed, or what the method's own `serve` makes of that. What the message
    reads of the state is seen when it is read; the rest is declared, or tried here.
    """
    check_algorithm_object(algorithm, "stgt.ScaffoldPlus(tau=10)")
    ALGORITHMS.name_of(type(algorithm))  # a client finds it by its name
    if not isinstance(topology, Topology) or not isinstance(topology.structure, Sampled):
        raise ValueError(f"topology={topology}: Flower has a server; give stgt.topology.server(n, sampled=s).")
    if algorithm.gamma is not None:
        raise ValueError(f"gamma={algorithm.gamma}: leave it out of {algorithm.label}, it is the clients' lr.")
    if isinstance(algorithm, OuterStep) and "x" not in algorithm.held:
        raise ValueError(
            f"{algorithm.label}: the server makes the outer step, on one model with one "
            f"{' and one '.join(algorithm.remembers)}, and {algorithm.inner.label} keeps a model at each worker: wrap "
            f"a method whose model the server holds, as {type(algorithm).__name__}(ScaffoldPlus(tau=20)) does, or use "
            "DiLoCo."
        )
    hindrance = _hindrance(algorithm)
    if hindrance:
        raise ValueError(
            f"{algorithm.label} as given needs more than one model from a worker each round ({hindrance}): use "
            "ScaffoldPlus, Scaffold (option II, no warm start), FedAvg, FedProx, FedDyn, DiLoCo, STGT, LED or "
            "DPSGD(atc=True)."
        )
    check_fit(algorithm, topology)
    if _serves(algorithm):
        _check_serve(algorithm, topology.participation)


def _hindrance(algorithm: Algorithm) -> str:
    """What the server cannot know or do; "" if there is nothing."""
    replaced = {sent.name for sent in algorithm.exchanges if sent.replaces}
    found = [f"it reads {name!r} of a round" for name in sorted(algorithm.reads - KNOWN_TO_SERVER)]
    found += ["it starts warm"] if algorithm.starts_warm else []
    found += ["it tosses a coin"] if algorithm.coin else []
    found += ["it exchanges twice"] if algorithm.exchanges_again else []
    found += ["it mixes more than once"] if algorithm.gossips > 1 else []
    found += ["it is made of an oracle"] if algorithm.oracle is not None else []
    replaced |= set(algorithm.held) if _serves(algorithm) else set()
    found += [f"{name} is not declared by replaces=True" for name in ("x", *algorithm.held) if name not in replaced]
    return found[0] if found else ""


def _serves(algorithm: Algorithm) -> bool:
    """Does the server make more of what was mixed than to put it in the fields' places?"""
    return "x" in algorithm.held and type(algorithm).serve is not Algorithm.serve


def _check_serve(algorithm: Algorithm, share: float) -> None:
    """A ValueError unless `serve` says of the server's fields what `merge` does, tried on numbers, and the local steps
    do without those that are not sent."""
    draws = np.random.default_rng(0)
    state = {name: draws.uniform(1, 2, 4) for name in algorithm.state_fields}
    parts = {"gamma": 0.1, "round": 0, "participation": share, **{name: draws.uniform(1, 2, 4) for name in VECTORS}}
    local = Local(algorithm.label, algorithm.reads, **{**parts, "start": state["x"]})
    mixed = {sent.name: draws.uniform(1, 2, 4) for sent in algorithm.exchanges}
    merged, served = hear(algorithm, readable(algorithm, state), local, mixed), serve(algorithm, state, mixed)
    for name in algorithm.held:
        if not np.allclose(merged[name], served[name], rtol=1e-9, atol=0):
            raise ValueError(
                f"{algorithm.label}'s serve and merge make different things of {name!r}, given the same mixture: "
                "write both alike."
            )
    sent = {name: value for name, value in readable(algorithm, state).items() if name not in unsent(algorithm)}
    algorithm.correction(
        Fields(
            sent,
            algorithm.label,
            lambda name: f"state[{name!r}] in its local steps, which the server keeps and does not send: exchange it",
        ),
        state["x"],
    )


def unsent(algorithm: Algorithm) -> list[str]:
    """The fields that the server keeps to itself: it holds them, and nobody says them, such as outer momentum."""
    said = {sent.name for sent in algorithm.exchanges}
    return [name for name in algorithm.held if name not in said]


def worker_fields(algorithm: Algorithm) -> list[str]:
    """The fields of the state that live at a worker, beside the model which it gets from the server."""
    return [field for field in algorithm.state_fields if field != "x" and field not in algorithm.held]


def as_text(algorithm: Algorithm) -> str:
    """The algorithm as JSON: its name and what was given."""
    return json.dumps(_table(algorithm), sort_keys=True)


def _table(algorithm: Algorithm) -> dict[str, Any]:
    """Its name and what was given, and the same of one that it wraps."""
    given = {one.name: getattr(algorithm, one.name) for one in fields(algorithm) if one.init}
    given = {name: _table(value) if isinstance(value, Algorithm) else value for name, value in given.items()}
    known = {name: value for name, value in given.items() if value is not None}
    return {"name": ALGORITHMS.name_of(type(algorithm)), **known}


def from_text(text: str) -> Algorithm:
    """The algorithm that `as_text` wrote, of those which this process has registered: no code is named by a server."""
    part = Named.model_validate(json.loads(text))

    def find(name: str, table: str) -> Any:
        return ALGORITHMS.find(name, f"the server's {table}", installed=False)

    return algorithm_of({"name": part.name, **part.arguments}, find)
