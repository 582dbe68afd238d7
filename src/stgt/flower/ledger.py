"""The server's algebra: what it knows of each worker, and what a round's replies make of it. NumPy, no Flower.

A *view* is what a worker starts its next round from: the model and the other fields that were mixed. Where the server
holds the model (Scaffold, FedAvg), all workers share the last round's view, and what the server keeps to itself (outer
momentum) stands in it too, and is not sent. Where the workers keep their own (ST-GT), each has the view of the last
round in which its reply was taken in; a view goes when nobody is left at it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import begin, say, serve
from stgt.algorithms.declare import Fields
from stgt.flower.fit import unsent, worker_fields
from stgt.topology import Topology

Arrays = dict[str, np.ndarray]  # by the parameter's name
View = dict[str, Arrays]  # by the field's name
BEFORE = -1  # the round before the first
QUIET = np.errstate(all="ignore")  # what is not finite is looked for where it matters, and not warned of
NOTHING = ""  # the mark of a worker none of whose replies was taken in


@dataclass(frozen=True)
class Reply:
    """What a worker said: its last model, how far its steps went, the buffers that it changed."""

    end: Arrays
    travelled: Mapping[str, float]  # the sum of the round's stepsizes
    direction: Arrays | None = None  # the mean corrected gradient, if the base optimiser is not plain SGD
    buffers: Arrays = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)  # other names of the same parameters

    def mark(self, before: str, r: int) -> str:
        """Tells this reply to round r, by a worker whose last one was `before`, from all others: a chain of hashes.

        A worker that was called twice for a round, or long ago, thereby knows which of its replies the server has.
        """
        found = hashlib.sha256(f"{before} {r}".encode())
        for arrays in (self.end, self.direction or {}):
            for name in sorted(arrays):
                found.update(f"{name} {self.travelled[name]!r}".encode())
                found.update(np.ascontiguousarray(arrays[name]).data)
        return found.hexdigest()


class Ledger:
    """The state of the server.

    Args:
        algorithm: the method.
        topology: a server; its share s/n is that of the method, however many workers really reply.
        arrays: the first model, buffers and frozen parameters included.
    """

    def __init__(self, algorithm: Algorithm, topology: Topology, arrays: Arrays):
        self.algorithm, self.topology = algorithm, topology
        self.views: dict[int, View] = {BEFORE: {"x": dict(arrays)}}
        self.at = dict.fromkeys(range(topology.n), BEFORE)
        self.accepted = dict.fromkeys(range(topology.n), NOTHING)  # the mark of each worker's last reply taken in
        self.trained: frozenset[str] | None = None  # the names of the parameters, once a reply has told them
        self.rest: Arrays = {}  # the other arrays, from then on
        self.tied: dict[str, str] = {}
        self.kinds = {name: (array.shape, array.dtype) for name, array in arrays.items()}

    def view(self, worker: int) -> View:
        """What a worker is told: the model with everything in it, and the other fields."""
        found, own = self.views[self.at[worker]], unsent(self.algorithm)
        return {**{key: one for key, one in found.items() if key not in own}, "x": self._whole(found["x"])}

    def model(self) -> Arrays:
        """The mean of all workers' models; the server's own where it holds one."""
        counts = {r: sum(at == r for at in self.at.values()) for r in self.views}
        if len(counts) == 1:
            return self._whole(next(iter(self.views.values()))["x"])
        means: Arrays = {}
        for name, (_, dtype) in self.kinds.items():
            parts = [(counts[r], view["x"][name]) for r, view in self.views.items() if name in view["x"]]
            if parts:
                total = np.sum([count * one.astype(np.float64) for count, one in parts], axis=0)
                means[name] = (total / self.topology.n).astype(dtype)
        return self._whole(means)

    def check(self, worker: int, reply: Reply, other: Reply | None = None) -> None:
        """A ValueError that says what is wrong with a reply to this round, given another that is right."""
        trained, has = self.trained or set((other or reply).end), set(reply.end)
        if has != trained:
            odd = min(has ^ trained)
            raise ValueError(f"{odd} is trained by some clients and not by others: give all clients the same model.")
        check_reply(reply, self.view(worker)["x"])

    def take(self, r: int, replies: Mapping[int, Reply]) -> None:
        """Ends round r with the replies that came, at least one.

        What is mixed of the model is the mean over those who replied. For every other field that the server holds, a
        worker that was called and did not reply counts as one that changed nothing, so that c keeps its fixed
        proportion to the workers' own control variables, for whatever γ_c and however many replies were lost. What the
        server then holds is what the method's `serve` makes of that.
        """
        first = replies[min(replies)]
        mixed = {name: self._mixed(r, name, replies) for name in first.end}
        if self.trained is None:
            self._separate(frozenset(first.end))
        fields = next(iter(mixed.values()))
        self.views[r] = {key: {name: values[key] for name, values in mixed.items()} for key in fields}
        self.at |= dict.fromkeys(self.at if self.algorithm.held else replies, r)
        self.views = {key: view for key, view in self.views.items() if key in self.at.values()}
        if worker_fields(self.algorithm):
            self.accepted |= {worker: reply.mark(self.accepted[worker], r) for worker, reply in replies.items()}
        self.tied = dict(first.tied)
        for name in sorted({name for reply in replies.values() for name in reply.buffers}):
            own = self.rest[name]
            self.rest[name] = _merged(own, [replies[worker].buffers.get(name, own) for worker in sorted(replies)])

    def forget(self, r: int) -> None:
        """Starts all control variables again from where they began, at the mean model: a worker has lost its own.

        What the server keeps to itself stays: an outer momentum is in no proportion to anything of a worker's.
        """
        last, own = self.views[max(self.views)], unsent(self.algorithm)
        begun = {"x": {name: value for name, value in self.model().items() if name not in self.rest}}
        self.views = {r: begun | {key: one for key, one in last.items() if key in own}}
        self.at = dict.fromkeys(self.at, r)
        self.accepted = dict.fromkeys(self.accepted, NOTHING)

    @QUIET
    def _mixed(self, r: int, name: str, replies: Mapping[int, Reply]) -> Arrays:
        """All fields of one parameter after the round."""
        algorithm, share = self.algorithm, self.topology.participation
        sums: dict[str, np.ndarray] = {}
        state: Arrays = {}
        for worker in sorted(replies):  # in a fixed order: a sum depends on it
            reply = replies[worker]
            state = state_of(algorithm, self.views[self.at[worker]], name)
            local = local_of(algorithm, state["x"], reply, name, r, share)
            for key, value in say(algorithm, _known(algorithm, state), local).items():
                sums[key] = sums[key] + value if key in sums else value.astype(np.float64)
        silent = max(0, self.topology.sampled - len(replies))
        found = {}
        for key, total in sums.items():
            if key in algorithm.held and key != "x":
                total, count = total + silent * state[key], len(replies) + silent
            else:
                count = len(replies)
            found[key] = total / count
        if algorithm.held:  # all are at one view then, which is the server's own state
            found |= serve(algorithm, state, found)
        found = {key: value.astype(self.kinds[name][1]) for key, value in found.items()}
        for value in found.values():
            _check_finite(value, f"{name} is not finite after round {r + 1}: take a smaller lr, gamma_g or gamma_c.")
        return found

    def _separate(self, trained: frozenset[str]) -> None:
        """Puts what is not trained aside."""
        (only,) = self.views.values()
        self.rest = {name: value for name, value in only["x"].items() if name not in trained}
        only["x"] = {name: value for name, value in only["x"].items() if name in trained}
        self.trained = trained

    def _whole(self, x: Arrays) -> Arrays:
        whole = {**self.rest, **x}
        whole |= {other: whole[name] for other, name in self.tied.items()}
        return {name: whole[name] for name in self.kinds}


def state_of(algorithm: Algorithm, view: View, name: str) -> Arrays:
    """What the view says of one parameter's state; where it has no more than x, the state before round 0."""
    begun = begin(algorithm, view["x"][name])
    return begun | {field: view[field][name] for field in begun if field in view}


def _known(algorithm: Algorithm, state: Arrays) -> Fields:
    """What the server knows of a worker's state, and may be read in a message."""
    names = [name for name in ("x", *algorithm.held) if name != "x" or "start" in algorithm.reads]
    return Fields(
        {name: state[name] for name in dict.fromkeys(names)},
        algorithm.label,
        lambda name: f"state[{name!r}] for its message, which the server does not know: say what a server can work out",
    )


@QUIET
def direction_of(start: np.ndarray, reply: Reply, name: str) -> np.ndarray:
    """The mean direction of a worker's round."""
    return (
        (start - reply.end[name]) / float(reply.travelled[name]) if reply.direction is None else reply.direction[name]
    )


def local_of(algorithm: Algorithm, start: np.ndarray, reply: Reply, name: str, r: int, share: float) -> Local:
    """A worker's round, as both the worker and the server work it out, to the last bit."""
    return Local(
        algorithm.label,
        algorithm.reads,
        start=start,
        end=reply.end[name],
        direction=direction_of(start, reply, name),
        gamma=float(reply.travelled[name]) / algorithm.tau,
        round=r,
        participation=share,
    )


def check_reply(reply: Reply, sent: Arrays) -> None:
    """A ValueError unless a reply fits the model which its worker was sent, and its numbers can be gone on from.

    A buffer may hold inf and NaN, as a mask does, where the server's has the same.
    """
    buffers = sent.keys() - reply.end.keys()
    for arrays, known in ((reply.end, sent), (reply.direction or {}, reply.end), (reply.buffers, buffers)):
        for name, array in arrays.items():
            if name not in known:
                raise ValueError(f"{name} is not in the server's model: give both sides the same one.")
            shape, dtype = sent[name].shape, sent[name].dtype
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"{name} has shape {array.shape} and type {array.dtype} where the server's has {shape} and "
                    f"{dtype}: give both sides the same model."
                )
            if arrays is not reply.buffers:
                _check_finite(array, f"{name} is not finite after the local steps: take a smaller lr.")
            elif not (_is_finite(array) | same_bits(array, sent[name])).all():
                raise ValueError(
                    f"{name}, a buffer, holds inf or NaN where the server's does not hold the same: look at what "
                    "writes into it."
                )
    for name in reply.end:
        if not 0.0 < reply.travelled.get(name, 0.0) < math.inf:
            raise ValueError(f"{name} was trained with lr={reply.travelled.get(name)}: take one above 0.")
        way = direction_of(sent[name], reply, name)
        _check_finite(way, f"{name} went too far to be tracked: take a smaller lr.")


def same_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays of one shape and type are equal to the last bit; a NaN is equal to itself."""
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, each.itemsize) for each in (one, other))
    return (a == b).all(axis=1).reshape(one.shape)


def _is_finite(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array) if np.issubdtype(array.dtype, np.floating) else np.ones(array.shape, dtype=bool)


def _check_finite(array: np.ndarray, sentence: str) -> None:
    if not _is_finite(array).all():
        raise ValueError(sentence)


def _merged(own: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
    """What the workers make of a buffer: the mean; of counters and flags the largest.

    A number stays as it was where none of them changed it, and while it is not finite for one of them.
    """
    if not np.issubdtype(own.dtype, np.floating):
        return np.max(arrays, axis=0)
    stays = np.all([same_bits(own, one) for one in arrays], axis=0) | ~np.isfinite(arrays).all(axis=0)
    return np.where(stays, own, np.mean(arrays, axis=0, dtype=np.float64).astype(own.dtype))
