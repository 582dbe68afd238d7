"""The server's algebra: what it knows of each worker, and what a round's replies make of it. NumPy, no Flower.

A *view* is what a worker starts its next round from: the model and the other fields that were mixed. Where the server
holds the model (Scaffold, FedAvg), all workers share the last round's view, and what the server keeps to itself (outer
momentum) stands in it too, and is not sent. Where the workers keep their own (ST-GT), each has the view of the last
round in which its reply was taken in; a view goes when nobody is left at it.

The server can work out what each worker keeps, as it follows from the replies that it took in, and has a *copy* of it:
a worker that has lost its own gets that back, and c and all other workers stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from stgt.algorithms import Algorithm
from stgt.algorithms.calls import divides, say, serve
from stgt.algorithms.declare import Fields
from stgt.flower.bounds import Sizes, sizes
from stgt.flower.fit import unsent, worker_fields
from stgt.flower.own import own_after, state_of
from stgt.flower.reply import QUIET, Arrays, BadReply, Reply, View, check_finite, check_reply, digest, same_bits
from stgt.topology import Topology

BEFORE = -1  # the round before the first
NOTHING = ""  # the mark of a worker none of whose replies was taken in


class Ledger:
    """The state of the server.

    Args:
        algorithm: the method.
        topology: a server; its share s/n is that of the method, however many workers really reply.
        arrays: the first model, buffers and frozen parameters included.
        trained: the names of the parameters that are trained; the replies of the first round tell them if left out.
        tied: other names of the same parameters, if `trained` is given.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        topology: Topology,
        arrays: Arrays,
        trained: Iterable[str] | None = None,
        tied: Mapping[str, str] | None = None,
    ):
        self.algorithm, self.topology = algorithm, topology
        self.views: dict[int, View] = {BEFORE: {"x": dict(arrays)}}
        self.at = dict.fromkeys(range(topology.n), BEFORE)
        self.accepted = dict.fromkeys(range(topology.n), NOTHING)  # the mark of each worker's last reply taken in
        self.own: dict[int, View] = {}  # the copy of what each worker keeps
        self.unsure: set[int] = set()  # the workers who may not have their own, and are sent it
        self.trained: frozenset[str] | None = None  # the names of the parameters, once they are known
        self.rest: Arrays = {}  # the other arrays, from then on
        self.rest_digest = ""
        self.changed: dict[str, int] = {}  # the round before which each of these became what it is
        self.holds = dict.fromkeys(range(topology.n), BEFORE)  # the round at whose start a worker had all of them
        self.tied: dict[str, str] = {}
        self.usual: dict[str, float] = {}  # how large replies are, see stgt.flower.bounds
        self.kinds = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if trained is not None:
            self._separate(frozenset(trained), tied or {})

    # -- what workers are told ---------------------------------------------------------------------------------------

    def view(self, worker: int) -> View:
        """What a worker is told: the fields of the parameters, of all arrays while nobody knows what is trained."""
        own = unsent(self.algorithm)
        return {key: one for key, one in self.views[self.at[worker]].items() if key not in own}

    def rest_for(self, worker: int) -> Arrays:
        """What a worker lacks of the other arrays: buffers and frozen parameters."""
        return {name: value for name, value in self.rest.items() if self.changed[name] > self.holds[worker]}

    def copy_for(self, worker: int) -> View:
        """What a worker keeps, if it may not have it."""
        return self.own.get(worker, {}) if worker in self.unsure else {}

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

    # -- what they reply ---------------------------------------------------------------------------------------------

    def check(self, worker: int, reply: Reply) -> None:
        """A BadReply that says what is wrong with a reply to this round."""
        check_reply(reply, self._whole(self.views[self.at[worker]]["x"]))

    def odd_ones(self, replies: Mapping[int, Reply]) -> dict[int, str]:
        """Whose replies train or tie other parameters than the server knows, or than most of them do; and which."""
        if not replies:
            return {}
        if self.trained is not None:
            right, how = (self.trained, frozenset(self.tied.items())), "the server's model"
        else:  # the most frequent; of several, the largest
            votes = Counter(reply.shape for reply in replies.values())
            right = max(votes, key=lambda shape: (votes[shape], len(shape[0]), sorted(shape[0])))
            how = f"{votes[right]} of {len(replies)} clients"
        found = {}
        for worker, reply in replies.items():
            trained, tied = reply.shape
            if trained != right[0]:
                odd = min(trained ^ right[0])
                mine, others = ("it", how) if odd in trained else (how, "it")
                found[worker] = f"{odd} is trained by {mine} and not by {others}: give all clients the same model."
            elif tied != right[1]:
                odd, name = min(tied ^ right[1])
                found[worker] = f"it and {how} differ in {odd} being {name}: give all clients the same model."
        if divides(self.algorithm):
            found |= self._other_steps({worker: reply for worker, reply in replies.items() if worker not in found})
        return found

    def _other_steps(self, replies: Mapping[int, Reply]) -> dict[int, str]:
        """Whose stepsizes sum to something else than most of the others' do, where the method divides by it what must
        add up to 0 over all of them: the run would end elsewhere."""
        sums = {
            worker: tuple((name, f"{reply.travelled[name]:.9g}") for name in sorted(reply.end))
            for worker, reply in replies.items()
        }
        (most, _), *_ = Counter(sums.values()).most_common(1) or [((), 0)]
        found = {}
        for worker, own in sums.items():
            for (name, mine), (_, theirs) in zip(own, most, strict=True):
                if mine != theirs:
                    found[worker] = (
                        f"its stepsizes of {name} sum to {mine}, and those of most replies to {theirs}, which "
                        f"{self.algorithm.label} needs equal: give all clients one lr and one number of steps, or use "
                        "ScaffoldPlus."
                    )
        return found

    def measured(self, replies: Mapping[int, Reply], scales: Mapping[int, float]) -> dict[int, Sizes]:
        """How large each reply is, of a worker whose loss was multiplied by its scale."""
        whole = {at: self._whole(view["x"]) for at, view in self.views.items()}
        tracks = bool({"direction", "gamma"} & self.algorithm.reads)
        return {
            worker: sizes(reply, whole[self.at[worker]], scales.get(worker, 1.0), tracks)
            for worker, reply in replies.items()
        }

    def take(self, r: int, replies: Mapping[int, Reply]) -> None:
        """Ends round r with the replies that came, at least one; they agree in what is trained.

        What is mixed of the model is the mean over those who replied. For every other field that the server holds, a
        worker that was called and did not reply counts as one that changed nothing, so that c keeps its fixed
        proportion to the workers' own control variables, for whatever γ_c and however many replies were lost. What the
        server then holds is what the method's `serve` makes of that.
        """
        first = next(iter(replies.values()))
        mixed = {name: self._mixed(r, name, replies) for name in first.end}
        own = {worker: self._own_after(r, worker, reply, mixed) for worker, reply in replies.items()}
        if self.trained is None:
            self._separate(frozenset(first.end), first.tied)
        fields = next(iter(mixed.values()))
        self.views[r] = {key: {name: values[key] for name, values in mixed.items()} for key in fields}
        self.at |= dict.fromkeys(self.at if self.algorithm.held else replies, r)
        self.views = {key: view for key, view in self.views.items() if key in self.at.values()}
        if worker_fields(self.algorithm):
            self.own |= own
            self.unsure -= set(replies)
            self.accepted |= {worker: reply.mark(self.accepted[worker], r) for worker, reply in replies.items()}
        for worker, reply in replies.items():
            self.confirm(worker, r, reply.rest)
        for name in sorted({name for reply in replies.values() for name in reply.buffers}):
            before = self.rest[name]
            found = _merged(before, [replies[worker].buffers.get(name, before) for worker in sorted(replies)])
            if not same_bits(found, before).all():
                self.rest[name], self.changed[name] = found, r + 1
        if r + 1 in self.changed.values():
            self.rest_digest = digest(self.rest)

    def confirm(self, worker: int, r: int, held: str) -> None:
        """A worker says, by their digest, that it has the arrays which are not trained, as round r begins."""
        if self.rest and held == self.rest_digest:
            self.holds[worker] = r

    def missed(self, worker: int) -> None:
        """A worker has lost what it kept: it is sent all of it with the next call."""
        self.unsure.add(worker)
        self.holds[worker] = BEFORE

    def restarted(self) -> None:
        """The server goes on from a file: it does not count on what workers have."""
        self.unsure, self.rest_digest = set(self.own), digest(self.rest)
        self.holds = dict.fromkeys(self.holds, BEFORE)

    @QUIET
    def _mixed(self, r: int, name: str, replies: Mapping[int, Reply]) -> Arrays:
        """All fields of one parameter after the round."""
        algorithm, share = self.algorithm, self.topology.participation
        sums: dict[str, np.ndarray] = {}
        state: Arrays = {}
        for worker in sorted(replies):  # in a fixed order: a sum depends on it
            reply = replies[worker]
            state = state_of(algorithm, self.views[self.at[worker]], name)
            local = reply.local(algorithm, state["x"], name, r, share)
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
            check_finite(value, f"{name} is not finite after round {r + 1}: take a smaller lr, gamma_g or gamma_c.")
        return found

    @QUIET
    def _own_after(self, r: int, worker: int, reply: Reply, mixed: Mapping[str, Arrays]) -> View:
        """What a worker keeps after the round, as the worker itself works it out."""
        found: View = {field: {} for field in worker_fields(self.algorithm)}
        for name in reply.end if found else ():
            state = state_of(self.algorithm, self.views[self.at[worker]], name)
            state |= {field: arrays[name] for field, arrays in self.own.get(worker, {}).items()}
            local = reply.local(self.algorithm, state["x"], name, r, self.topology.participation)
            for field, value in own_after(self.algorithm, state, local, mixed[name]).items():
                found[field][name] = value
        return found

    def _separate(self, trained: frozenset[str], tied: Mapping[str, str]) -> None:
        """Puts what is not trained aside."""
        (only,) = self.views.values()
        missing = trained - only["x"].keys()
        if missing:
            raise BadReply(
                f"{min(missing)} is to be trained and is not in the server's arrays: give it the same model."
            )
        self.rest = {name: value for name, value in only["x"].items() if name not in trained and name not in tied}
        only["x"] = {name: value for name, value in only["x"].items() if name in trained}
        self.changed, self.rest_digest = dict.fromkeys(self.rest, 0), digest(self.rest)
        self.trained, self.tied = trained, dict(tied)

    def _whole(self, x: Arrays) -> Arrays:
        whole = {**self.rest, **x}
        whole |= {other: whole[name] for other, name in self.tied.items()}
        return {name: whole[name] for name in self.kinds}


def _known(algorithm: Algorithm, state: Arrays) -> Fields:
    """What the server knows of a worker's state, and may be read in a message."""
    names = [name for name in ("x", *algorithm.held) if name != "x" or "start" in algorithm.reads]
    return Fields(
        {name: state[name] for name in dict.fromkeys(names)},
        algorithm.label,
        lambda name: f"state[{name!r}] for its message, which the server does not know: say what a server can work out",
    )


def _merged(own: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
    """What the workers make of a buffer: the mean; of counters and flags the largest.

    A number stays as it was where none of them changed it, and while it is not finite for one of them.
    """
    if not np.issubdtype(own.dtype, np.floating):
        return np.max(arrays, axis=0)
    stays = np.all([same_bits(own, one) for one in arrays], axis=0) | ~np.isfinite(arrays).all(axis=0)
    return np.where(stays, own, np.mean(arrays, axis=0, dtype=np.float64).astype(own.dtype))
