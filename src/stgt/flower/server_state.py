"""The server's state, and how the replies of a round change it. NumPy, no Flower.

A *view* is what a client starts its next round from: the model and the other mixed variables. If the model is at the
server (Scaffold, FedAvg), all clients share the view of the last round. It also contains the variables that the server
does not send (outer momentum). If each client has its own model (ST-GT), a client has the view of the last round in
which its reply was accepted. A view is deleted when no client has it.

The server computes each client's state from the replies that it accepted, and keeps a copy. A client that has lost its
state receives this copy. Neither c nor any other client changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from stgt._internal.digest import digest
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import Checked
from stgt.algorithms.declare import Fields
from stgt.flower.client_state import NO_REPLY, next_client_state, state_from_view
from stgt.flower.methods import client_fields, server_only_fields
from stgt.flower.outliers import Sizes, sizes_of
from stgt.flower.protocol import (
    QUIET,
    Arrays,
    BadReply,
    Reply,
    View,
    check_finite,
    check_reply,
    same_bits,
)
from stgt.topology import Topology

INITIAL = -1  # the round number of the initial view


class ServerState:
    """The state of the server.

    Args:
        algorithm: the method.
        topology: a server; its share s/n is that of the method, however many clients reply.
        arrays: the initial model, buffers and frozen parameters included.
        trained: the names of the trained parameters; by default they are taken from the first round's replies.
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
        clients = range(topology.n)
        self.method, self.topology = Checked(algorithm), topology
        self.views: dict[int, View] = {INITIAL: {"x": dict(arrays)}}  # by the round that produced them
        self.view_round = dict.fromkeys(clients, INITIAL)  # the round of the view that each client has
        self.accepted = dict.fromkeys(clients, NO_REPLY)  # the hash of each client's last accepted reply
        self.client_states: dict[int, View] = {}  # the copy of each client's state
        self.resend: set[int] = set()  # the clients that may have lost their state
        self.trained: frozenset[str] | None = None  # the names of the trained parameters, once they are known
        self.untrained: Arrays = {}  # buffers and frozen parameters, once `trained` is known
        self.untrained_digest = ""
        self.changed: dict[str, int] = {}  # the first round that starts with the current value of each of these
        self.confirmed = dict.fromkeys(clients, INITIAL)  # the last round that each client started with all of these
        self.tied: dict[str, str] = {}
        self.usual: dict[str, float] = {}  # the usual sizes of replies, see stgt.flower.outliers
        self.specs = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if trained is not None:
            self._split(frozenset(trained), tied or {})

    # -- what clients are sent ---------------------------------------------------------------------------------------

    def view_for(self, client: int) -> View:
        """A client's view, without the variables that are not sent. It has all arrays while `trained` is unknown."""
        hidden = server_only_fields(self.method.spec)
        return {key: one for key, one in self.views[self.view_round[client]].items() if key not in hidden}

    def untrained_for(self, client: int) -> Arrays:
        """The buffers and frozen parameters that a client does not have."""
        return {name: value for name, value in self.untrained.items() if self.changed[name] > self.confirmed[client]}

    def state_for(self, client: int) -> View:
        """The copy of a client's state, if the client may have lost it."""
        return self.client_states.get(client, {}) if client in self.resend else {}

    def model(self) -> Arrays:
        """The mean of all clients' models, or the server's model, if it has one."""
        counts = {r: sum(one == r for one in self.view_round.values()) for r in self.views}
        if len(counts) == 1:
            return self._full_model(next(iter(self.views.values()))["x"])
        means: Arrays = {}
        for name, (_, dtype) in self.specs.items():
            parts = [(counts[r], view["x"][name]) for r, view in self.views.items() if name in view["x"]]
            if parts:
                total = np.sum([count * one.astype(np.float64) for count, one in parts], axis=0)
                means[name] = (total / self.topology.n).astype(dtype)
        return self._full_model(means)

    # -- checks of replies -------------------------------------------------------------------------------------------

    def check(self, client: int, reply: Reply) -> None:
        """Raises a BadReply if a reply does not fit this round."""
        check_reply(reply, self._full_model(self.views[self.view_round[client]]["x"]))

    def mismatches(self, replies: Mapping[int, Reply]) -> dict[int, str]:
        """The clients that train or tie other parameters than the server's model or most clients, and which ones."""
        if not replies:
            return {}
        if self.trained is not None:
            right, owner = (self.trained, frozenset(self.tied.items())), "the server's model"
        else:  # the most frequent structure; if there are several, the largest
            votes = Counter(reply.structure for reply in replies.values())
            right = max(votes, key=lambda one: (votes[one], len(one[0]), sorted(one[0])))
            owner = f"{votes[right]} of {len(replies)} clients"
        found = {}
        for client, reply in replies.items():
            trained, tied = reply.structure
            if trained != right[0]:
                odd = min(trained ^ right[0])
                one, other = ("it", owner) if odd in trained else (owner, "it")
                found[client] = f"{odd} is trained by {one} and not by {other}: give all clients the same model."
            elif tied != right[1]:
                odd, name = min(tied ^ right[1])
                found[client] = f"it and {owner} differ in {odd} being {name}: give all clients the same model."
        if self.method.divides():
            found |= self._unequal_lr_sums({one: reply for one, reply in replies.items() if one not in found})
        return found

    def _unequal_lr_sums(self, replies: Mapping[int, Reply]) -> dict[int, str]:
        """The clients whose sum of stepsizes differs from that of most others.

        Only for methods that divide by this sum, and whose terms must add up to 0 over all clients. With unequal
        divisors the run would converge to another point.
        """
        sums = {
            client: tuple((name, f"{reply.lr_sum[name]:.9g}") for name in sorted(reply.end))
            for client, reply in replies.items()
        }
        (most, _), *_ = Counter(sums.values()).most_common(1) or [((), 0)]
        found = {}
        for client, given in sums.items():
            for (name, one), (_, usual) in zip(given, most, strict=True):
                if one != usual:
                    found[client] = (
                        f"its stepsizes of {name} sum to {one}, and those of most replies to {usual}, but "
                        f"{self.method.label} needs equal sums: give all clients one lr and one number of steps, or "
                        "use ScaffoldPlus."
                    )
        return found

    def measure(self, replies: Mapping[int, Reply], scales: Mapping[int, float]) -> dict[int, Sizes]:
        """The sizes of each reply, given the factor of each client's loss."""
        models = {r: self._full_model(view["x"]) for r, view in self.views.items()}
        reads_direction = bool({"direction", "gamma"} & self.method.spec.reads)
        return {
            client: sizes_of(reply, models[self.view_round[client]], scales[client], reads_direction)
            for client, reply in replies.items()
        }

    # -- a round -----------------------------------------------------------------------------------------------------

    def aggregate(self, r: int, replies: Mapping[int, Reply]) -> None:
        """Ends round r with the accepted replies, at least one, which agree in what is trained.

        The model is the mean over the clients that replied. For every other variable at the server, a client that was
        called and did not reply counts as one without a change. So c keeps its fixed proportion to the clients' control
        variates, for any γ_c and however many replies were lost. The method's `serve` is then applied to the result.
        """
        first = next(iter(replies.values()))
        mixed = {name: self._mix(r, name, replies) for name in first.end}
        client_states = {client: self._next_state(r, client, reply, mixed) for client, reply in replies.items()}
        if self.trained is None:
            self._split(frozenset(first.end), first.tied)
        fields = next(iter(mixed.values()))
        self.views[r] = {key: {name: values[key] for name, values in mixed.items()} for key in fields}
        self.view_round |= dict.fromkeys(self.view_round if self.method.spec.server_fields else replies, r)
        self.views = {key: view for key, view in self.views.items() if key in self.view_round.values()}
        if client_fields(self.method.spec):
            self.client_states |= client_states
            self.resend -= set(replies)
            self.accepted |= {one: reply.chained_hash(self.accepted[one], r) for one, reply in replies.items()}
        for client, reply in replies.items():
            self.confirm(client, r, reply.untrained_digest)
        for name in sorted({name for reply in replies.values() for name in reply.buffers}):
            before = self.untrained[name]
            found = _merge_buffers(before, [replies[one].buffers.get(name, before) for one in sorted(replies)])
            if not same_bits(found, before).all():
                self.untrained[name], self.changed[name] = found, r + 1
        if r + 1 in self.changed.values():
            self.untrained_digest = digest(self.untrained)

    def confirm(self, client: int, r: int, found: str) -> None:
        """A client reports the digest of its buffers and frozen parameters at the start of round r."""
        if self.untrained and found == self.untrained_digest:
            self.confirmed[client] = r

    def state_lost(self, client: int) -> None:
        """A client has lost its state: the next message contains all of it."""
        self.resend.add(client)
        self.confirmed[client] = INITIAL

    def resumed(self) -> None:
        """The server continues from a file: it no longer assumes that clients have anything."""
        self.resend, self.untrained_digest = set(self.client_states), digest(self.untrained)
        self.confirmed = dict.fromkeys(self.confirmed, INITIAL)

    @QUIET
    def _mix(self, r: int, name: str, replies: Mapping[int, Reply]) -> Arrays:
        """All variables of one parameter after the round."""
        method, participation = self.method, self.topology.participation
        sums: dict[str, np.ndarray] = {}
        state: Arrays = {}
        for client in sorted(replies):  # in a fixed order: the sum's rounding depends on it
            reply = replies[client]
            state = state_from_view(method, self.views[self.view_round[client]], name)
            local = reply.local(method, state["x"], name, r, participation)
            for key, value in method.message(_readable_by_server(method, state), local).items():
                sums[key] = sums[key] + value if key in sums else value.astype(np.float64)
        missing = max(0, self.topology.sampled - len(replies))
        found = {}
        for key, total in sums.items():
            if key in method.spec.server_fields and key != "x":
                total, count = total + missing * state[key], len(replies) + missing
            else:
                count = len(replies)
            found[key] = total / count
        if method.spec.server_fields:  # then all clients share one view, which is the server's own state
            found |= method.serve(state, found)
        found = {key: value.astype(self.specs[name][1]) for key, value in found.items()}
        for value in found.values():
            check_finite(value, f"{name} is not finite after round {r + 1}: use a smaller lr, gamma_g or gamma_c.")
        return found

    @QUIET
    def _next_state(self, r: int, client: int, reply: Reply, mixed: Mapping[str, Arrays]) -> View:
        """A client's state after the round, the same as the client itself computes."""
        found: View = {field: {} for field in client_fields(self.method.spec)}
        for name in reply.end if found else ():
            state = state_from_view(self.method, self.views[self.view_round[client]], name)
            state |= {field: arrays[name] for field, arrays in self.client_states.get(client, {}).items()}
            local = reply.local(self.method, state["x"], name, r, self.topology.participation)
            for field, value in next_client_state(self.method, state, local, mixed[name]).items():
                found[field][name] = value
        return found

    def _split(self, trained: frozenset[str], tied: Mapping[str, str]) -> None:
        """Moves the arrays that are not trained out of the view."""
        (view,) = self.views.values()
        missing = trained - view["x"].keys()
        if missing:
            raise BadReply(
                f"{min(missing)} is trained and is not in the server's arrays: give the server the same model."
            )
        self.untrained = {name: value for name, value in view["x"].items() if name not in trained and name not in tied}
        view["x"] = {name: value for name, value in view["x"].items() if name in trained}
        self.changed, self.untrained_digest = dict.fromkeys(self.untrained, 0), digest(self.untrained)
        self.trained, self.tied = trained, dict(tied)

    def _full_model(self, x: Arrays) -> Arrays:
        """The trained parameters under all their names, and the untrained arrays."""
        found = {**self.untrained, **x}
        found |= {other: found[name] for other, name in self.tied.items()}
        return {name: found[name] for name in self.specs}


def _readable_by_server(method: Checked, state: Arrays) -> Fields:
    """The part of a client's state that the server has: a message may read nothing else."""
    names = [name for name in ("x", *method.spec.server_fields) if name != "x" or "start" in method.spec.reads]
    return Fields(
        {name: state[name] for name in dict.fromkeys(names)},
        method.label,
        lambda name: f"state[{name!r}] for its message, which the server does not have: send what a server can compute",
    )


def _merge_buffers(before: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
    """The mean of the clients' values of a buffer; the maximum for counters and flags.

    An entry keeps its value if no client changed it, or if it is not finite at a client.
    """
    if not np.issubdtype(before.dtype, np.floating):
        return np.max(arrays, axis=0)
    stays = np.all([same_bits(before, one) for one in arrays], axis=0) | ~np.isfinite(arrays).all(axis=0)
    return np.where(stays, before, np.mean(arrays, axis=0, dtype=np.float64).astype(before.dtype))
