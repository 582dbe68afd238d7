"""Which methods run on a server with clients, and the variables of their state on each side."""

from __future__ import annotations

import numpy as np

from stgt._internal.checks import InputError
from stgt._internal.registry import ALGORITHMS
from stgt._internal.serialize import from_plain, registered, to_plain
from stgt.algorithms import Algorithm, RoundSpec
from stgt.algorithms.calls import Checked
from stgt.algorithms.declare import VECTORS, Fields
from stgt.algorithms.support import ENGINES
from stgt.simulator.instance import check_algorithm_object, check_runs
from stgt.topology import Topology
from stgt.topology.sampled import Sampled


def check_supported(algorithm: Algorithm, topology: Topology) -> None:
    """A ValueError unless the server can compute every message of the method from a client's last model alone.

    A message may read the values of a round that the server has, the state x and the server's variables. x and the
    server's variables must become the mixed values, or what the method's own `serve` computes from them. What a message
    reads of the state is checked when it is read. All else is declared, or tested here.
    """
    check_algorithm_object(algorithm, ENGINES["flower"].example)
    ALGORITHMS.name_of(type(algorithm))  # a client finds the method by its name
    from_plain(to_plain(algorithm), registered(ALGORITHMS))  # and also a method that it wraps
    if not isinstance(topology, Topology) or not isinstance(topology.structure, Sampled):
        raise InputError("topology", topology, "Flower has a server; give stgt.topology.server(n, sampled=s).")
    check_runs(algorithm, topology, "flower")
    if "x" in algorithm.spec().server_fields:
        _check_serve(algorithm, topology.participation)


def _check_serve(algorithm: Algorithm, participation: float) -> None:
    """A ValueError unless `serve` and `merge` compute the same server variables, tested on random numbers, and the
    local steps read no variable that is not sent."""
    draws, method = np.random.default_rng(0), Checked(algorithm)
    state = {name: draws.uniform(1, 2, 4) for name in method.spec.state_fields}
    vectors = {name: draws.uniform(1, 2, 4) for name in VECTORS}
    parts = {"gamma": 0.1, "round": 0, "participation": participation, **vectors}
    local = method.local(**{**parts, "start": state["x"]})
    mixed = {sent.name: draws.uniform(1, 2, 4) for sent in method.spec.messages}
    merged, served = method.merge(method.readable(state), local, mixed), method.serve(state, mixed)
    for name in method.spec.server_fields:
        if not np.allclose(merged[name], served[name], rtol=1e-9, atol=0):
            raise ValueError(
                f"{algorithm.label}'s serve and merge compute different values of {name!r} from the same mixed values: "
                "make them agree."
            )
    hidden = server_only_fields(method.spec)
    sent = {name: value for name, value in method.readable(state).items() if name not in hidden}
    method.correction(
        Fields(
            sent,
            algorithm.label,
            lambda name: f"state[{name!r}] in its local steps, which the server keeps and does not send: exchange it",
        ),
        state["x"],
    )


def server_only_fields(spec: RoundSpec) -> list[str]:
    """The server's variables that no message contains, such as outer momentum: they are not sent."""
    exchanged = {sent.name for sent in spec.messages}
    return [name for name in spec.server_fields if name not in exchanged]


def client_fields(spec: RoundSpec) -> list[str]:
    """The variables of the state that a client keeps. The model is not one: the server sends it."""
    return [field for field in spec.state_fields if field != "x" and field not in spec.server_fields]
