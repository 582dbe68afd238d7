"""What a worker said, as a typed value, and what must hold of it. NumPy, no Flower."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stgt.algorithms import Algorithm, Local

Arrays = dict[str, np.ndarray]  # by the parameter's name
View = dict[str, Arrays]  # by the field's name
QUIET = np.errstate(all="ignore")  # what is not finite is looked for where it matters, and not warned of


SAME_VERSION = "use the same version of stgt on both sides."
LONGEST = 1000  # characters of a sentence


class BadReply(ValueError):  # noqa: N818
    """Why a worker is left out of a round; `reason` is the word for it.

    A sentence may hold what a client said: nothing in it can start a line of the log, move a cursor or fill a disk.
    """

    reason = "refused"

    def __init__(self, sentence: str):
        text = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in sentence[:LONGEST]
        )
        super().__init__(text + ("…" if len(sentence) > LONGEST else ""))


class Crashed(BadReply):
    """The worker's own code failed; it may do better the next time."""

    reason = "crashed"


class Lost(BadReply):
    """The worker no longer has what the server counts on; it is sent with the next call."""

    reason = "lost"


@dataclass(frozen=True)
class Reply:
    """What a worker said: its last model, how far its steps went, the buffers that it changed."""

    end: Arrays
    travelled: Mapping[str, float]  # the sum of the round's stepsizes
    direction: Arrays | None = None  # the mean corrected gradient, if the base optimiser is not plain SGD
    buffers: Arrays = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)  # other names of the same parameters
    rest: str = ""  # the digest of what it holds of the model beside what it trains, as its round began

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

    @QUIET
    def way(self, start: np.ndarray, name: str) -> np.ndarray:
        """The mean direction of the worker's round."""
        return (
            (start - self.end[name]) / float(self.travelled[name]) if self.direction is None else self.direction[name]
        )

    def local(self, algorithm: Algorithm, start: np.ndarray, name: str, r: int, share: float) -> Local:
        """The worker's round, as both the worker and the server work it out, to the last bit."""
        return Local(
            algorithm.label,
            algorithm.reads,
            start=start,
            end=self.end[name],
            direction=self.way(start, name),
            gamma=float(self.travelled[name]) / algorithm.tau,
            round=r,
            participation=share,
        )

    @property
    def shape(self) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
        """What it trains and which names it ties: all workers must agree in it."""
        return frozenset(self.end), frozenset(self.tied.items())


def check_reply(reply: Reply, known: Arrays) -> None:
    """A BadReply unless a reply fits the model as the server knows it, and its numbers can be gone on from.

    A buffer may hold inf and NaN, as a mask does, where the server's has the same.
    """
    if not reply.end:
        raise BadReply("it trained nothing: give its optimiser model.parameters().")
    if reply.direction is not None and reply.direction.keys() != reply.end.keys():
        odd = min(reply.direction.keys() ^ reply.end.keys())
        raise BadReply(f"{odd} is in one of its model and its direction only: {SAME_VERSION}")
    buffers = known.keys() - reply.end.keys() - reply.tied.keys()
    for arrays, names in ((reply.end, known.keys()), (reply.direction or {}, known.keys()), (reply.buffers, buffers)):
        for name, array in arrays.items():
            if name not in names:
                raise BadReply(f"{name} is not in the server's model: give both sides the same one.")
            shape, dtype = known[name].shape, known[name].dtype
            if array.shape != shape or array.dtype != dtype:
                raise BadReply(
                    f"{name} has shape {array.shape} and type {array.dtype} where the server's has {shape} and "
                    f"{dtype}: give both sides the same model."
                )
            if arrays is not reply.buffers:
                check_finite(array, f"{name} is not finite after the local steps: take a smaller lr.")
            elif not (_is_finite(array) | same_bits(array, known[name])).all():
                raise BadReply(
                    f"{name}, a buffer, holds inf or NaN where the server's does not hold the same: look at what "
                    "writes into it."
                )
    for other, name in reply.tied.items():
        kinds = {(known[each].shape, known[each].dtype) for each in (other, name) if each in known}
        if name not in reply.end or other in reply.end or other not in known or len(kinds) > 1:
            raise BadReply(f"it ties {other} to {name}, which the server's model cannot: give both sides the same one.")
    for name in reply.end:
        if not 0.0 < reply.travelled.get(name, 0.0) < math.inf:
            raise BadReply(f"{name} was trained with lr={reply.travelled.get(name)}: take one above 0.")
        check_finite(reply.way(known[name], name), f"{name} went too far to be tracked: take a smaller lr.")


def same_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays of one shape and type are equal to the last bit; a NaN is equal to itself."""
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, each.itemsize) for each in (one, other))
    return (a == b).all(axis=1).reshape(one.shape)


def differs(one: np.ndarray, other: np.ndarray) -> bool:
    """Do two arrays differ in shape, type or a bit?"""
    return one.shape != other.shape or one.dtype != other.dtype or not same_bits(one, other).all()


def check_finite(array: np.ndarray, sentence: str) -> None:
    """A BadReply with this sentence if a number is inf or NaN."""
    if not _is_finite(array).all():
        raise BadReply(sentence)


def _is_finite(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array) if np.issubdtype(array.dtype, np.floating) else np.ones(array.shape, dtype=bool)


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Of arrays by name, to the last bit; "" of none."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.shape} {array.dtype} ".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest() if arrays else ""
