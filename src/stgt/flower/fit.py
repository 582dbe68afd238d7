"""Which methods a server and workers that meet once a round can run, and the method as text for the workers."""

from __future__ import annotations

import json
from dataclasses import asdict

from stgt.algorithms import ALGORITHMS, Algorithm
from stgt.engines.job import check_fit
from stgt.engines.probe import Recorder, recorders
from stgt.parts import Part, make_algorithm
from stgt.topology import Topology
from stgt.topology.structure import Sampled

KNOWN_TO_SERVER = {"start", "end", "direction", "gamma", "round", "participation"}  # of a worker's `Local`


def check_usable(algorithm: Algorithm, topology: Topology) -> None:
    """A ValueError unless the server can work every message out from a worker's last model alone."""
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm={algorithm!r}: give an instance, such as stgt.ScaffoldPlus(tau=10).")
    if type(algorithm) not in ALGORITHMS.values():
        raise ValueError(f"{type(algorithm).__name__} is not known to clients: use a method of stgt's own.")
    if not isinstance(topology, Topology) or not isinstance(topology.structure, Sampled):
        raise ValueError(f"topology={topology}: Flower has a server; give stgt.topology.server(n, sampled=s).")
    if algorithm.gamma is not None:
        raise ValueError(f"gamma={algorithm.gamma}: leave it out of {algorithm.label}, it is the clients' lr.")
    if algorithm.needs or algorithm.oracle is not None or not _sayable(algorithm):
        raise ValueError(
            f"{algorithm.label} as given needs more than one model from a worker each round: use ScaffoldPlus, "
            "Scaffold (option II, no warm start), FedAvg, FedProx, STGT or DPSGD(atc=True)."
        )
    check_fit(algorithm, topology)


def worker_fields(algorithm: Algorithm) -> list[str]:
    """The fields of the state that live at a worker, beside the model which it gets from the server."""
    return [field for field in algorithm.init(0.0) if field != "x" and field not in algorithm.held]


def merge_reads(algorithm: Algorithm) -> list[str]:
    """The vectors of a round that a worker must keep until it hears what became of its message."""
    state, local = recorders(algorithm)
    algorithm.merge(state, local, algorithm.message(*recorders(algorithm)))  # pyright: ignore[reportArgumentType]
    return sorted(local.asked & {"start", "end", "direction"})


def as_text(algorithm: Algorithm) -> str:
    """The algorithm as JSON: its name and what was given."""
    name = next(name for name, kind in ALGORITHMS.items() if kind is type(algorithm))
    given = {key: value for key, value in asdict(algorithm).items() if value is not None}
    return json.dumps({"name": name, **given}, sort_keys=True)


def from_text(text: str) -> Algorithm:
    """The algorithm that `as_text` wrote."""
    return make_algorithm(Part.model_validate(json.loads(text)))


def _sayable(algorithm: Algorithm) -> bool:
    """Does the message say only what the server knows, is x what was mixed, and is the rest of held fields too?

    What lives at a worker beside a held model must not wait for the mixture, as the worker is gone by then.
    """
    state, local = recorders(algorithm)
    message = algorithm.message(state, local)  # pyright: ignore[reportArgumentType]
    if not (local.asked <= KNOWN_TO_SERVER and state.asked <= {"x", *algorithm.held}):
        return False
    found = []
    for shift in (1.0, 2.0):
        mixed = {field: shift + number for number, field in enumerate(message)}
        merged = algorithm.merge(Recorder(state), Recorder(local), mixed)  # pyright: ignore[reportArgumentType]
        if any(merged[field] != mixed[field] for field in ("x", *algorithm.held)):
            return False
        found.append([merged.get(field) for field in worker_fields(algorithm)])
    return not algorithm.held or found[0] == found[1]
