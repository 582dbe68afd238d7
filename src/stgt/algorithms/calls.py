"""A method as an engine calls it: each function gets exactly what was declared, and its result is checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any

from stgt.algorithms.base import Algorithm
from stgt.algorithms.declare import VECTORS, Fields, Local, MessageVar, RoundSpec

Arrays = Mapping[str, Any]  # arrays of the engine's library, in arguments and results


def at_stepsize(algorithm: Algorithm, gamma: Any) -> Algorithm:
    """The method with the stepsize of one round instead of its `gamma`, which may be a schedule."""
    made = copy(algorithm)
    object.__setattr__(made, "gamma", gamma)
    return made


def whole(label: str, state: Arrays) -> Fields:
    """The state between two rounds, including x, for measurements or for a second exchange."""
    return Fields(state, label, _not_kept)


class Checked:
    """A method with its spec, whose functions are checked against that spec. An engine makes it once.

    Attributes:
        algorithm: the method.
        spec: its declaration.
        label: its name.
    """

    def __init__(self, algorithm: Algorithm, spec: RoundSpec | None = None):
        self.algorithm, self.spec = algorithm, algorithm.spec() if spec is None else spec
        self.label, self.tau = algorithm.label, algorithm.tau
        # Not checked: `correction` runs in every local step, the others only read a state.
        self.correction: Callable[..., Any] = algorithm.correction
        self.tracker: Callable[..., Any] = algorithm.tracker
        self.conserved: Callable[..., Any] = algorithm.conserved

    def at_stepsize(self, gamma: Any) -> Checked:
        return Checked(at_stepsize(self.algorithm, gamma), self.spec)

    # -- what a method receives ------------------------------------------------------------------------------------

    def readable(self, state: Arrays) -> Fields:
        """The state as the method may read it in a round: its variables, and x (the round's start) if it reads that."""
        names = [name for name in self.spec.state_fields if name != "x" or "start" in self.spec.reads]
        return Fields({name: state[name] for name in names if name in state}, self.label, _not_kept)

    def whole(self, state: Arrays) -> Fields:
        return whole(self.label, state)

    def local(self, **parts: Any) -> Local:
        """The parts of a round that the method reads."""
        return Local(self.label, self.spec.reads, **parts)

    def after_steps(self, *, start: Any, end: Any, gamma: Any, **others: Any) -> Local:
        """The `Local` after plain steps from `start` to `end`, with their mean direction."""
        direction = (start - end) / (gamma * self.tau)
        return self.local(start=start, end=end, direction=direction, gamma=gamma, **others)

    # -- its functions ---------------------------------------------------------------------------------------------

    def init(self, x: Any, gradient: Any = None, mean: Any = None) -> dict[str, Any]:
        """The state before round 0."""
        state = self.algorithm.init(x, gradient, mean)
        self._check_names("init", state, self.spec.state_fields)
        return dict(state)

    def message(self, state: Arrays, local: Local) -> dict[str, Any]:
        """What a node sends at the end of a round; `state` is `readable`."""
        return self._sent("message", self.algorithm.message(state, local), self.spec.messages)

    def merge(self, state: Arrays, local: Local, mixed: Arrays) -> dict[str, Any]:
        """The state after a node has received `mixed`; `state` is `readable`."""
        merged = self.algorithm.merge(state, local, self._received(mixed))
        return self._merged("merge", merged, mixed, self.spec.messages)

    def serve(self, state: Arrays, mixed: Arrays) -> dict[str, Any]:
        """The fields of a server that is a separate process; `state` has their values before."""
        before = Fields(
            {name: state[name] for name in self.spec.server_fields},
            self.label,
            lambda name: f"state[{name!r}] in its serve, which the server does not hold: read only at_server fields",
        )
        served = self.algorithm.serve(before, self._received(mixed))
        self._check_names("serve", served, self.spec.server_fields)
        return dict(served)

    def second_message(self, state: Arrays, gradient: Any) -> dict[str, Any]:
        """What is sent in the second exchange, given the gradient at the merged model."""
        message = self.algorithm.second_message(self.whole(state), gradient)
        return self._sent("second_message", message, self.spec.second_messages)

    def second_merge(self, state: Arrays, gradient: Any, mixed: Arrays) -> dict[str, Any]:
        """The state after the second exchange."""
        merged = self.algorithm.second_merge(self.whole(state), gradient, self._received(mixed))
        return self._merged("second_merge", merged, mixed, self.spec.second_messages)

    def divides(self) -> bool:
        """Does a state variable other than x depend on the node's stepsize, for example because it divides by it?

        If it does, Σ_i c_i = 0 needs the same sum of stepsizes at all nodes in a round. It is tested on numbers.
        """
        if "gamma" not in self.spec.reads:
            return False
        sent, kept = [one.name for one in self.spec.messages], self.spec.state_fields
        # All numbers differ, so that no two of them cancel.
        numbers = iter(1 + (0.618 * k) % 1 for k in range(len(kept) + len(sent) + len(VECTORS)))
        state, mixed = ({name: next(numbers) for name in names} for names in (kept, sent))
        parts = {"round": 0, "participation": 1.0, **dict(zip(sorted(VECTORS), numbers, strict=True))}

        def after(gamma: float) -> dict[str, Any]:
            return self.merge(self.readable(state), self.local(gamma=gamma, **parts), mixed)

        try:
            one, two = after(0.1), after(0.2)
        except (AttributeError, TypeError):  # a method with more than + − · /: assume that it does, to be safe
            return True
        return any(one[name] != two[name] for name in one if name != "x")

    # -- what it must return ---------------------------------------------------------------------------------------

    def _received(self, mixed: Arrays) -> Fields:
        return Fields(
            mixed, self.label, lambda name: f"mixed[{name!r}], which it does not send: add MessageVar({name!r})"
        )

    def _sent(self, part: str, message: Arrays, declared: Sequence[MessageVar]) -> dict[str, Any]:
        self._check_names(part, message, [sent.name for sent in declared], "messages")
        return {sent.name: message[sent.name] for sent in declared}

    def _merged(self, part: str, merged: Arrays, mixed: Arrays, declared: Sequence[MessageVar]) -> dict[str, Any]:
        self._check_names(part, merged, self.spec.state_fields)
        for sent in declared:
            if sent.replaces and sent.name in merged and merged[sent.name] is not mixed[sent.name]:
                raise ValueError(
                    f"{self.label}'s {part} changes mixed[{sent.name!r}] before it stores it: remove replaces=True "
                    f"from MessageVar({sent.name!r}) in its messages."
                )
        return {name: merged[name] for name in self.spec.state_fields}

    def _check_names(self, part: str, given: Arrays, wanted: Collection[str], where: str = "state") -> None:
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{self.label}'s {part} returns a {type(given).__name__}: return a dict of vectors by name."
            )
        for name in wanted:
            if name not in given:
                raise ValueError(f"{self.label}'s {part} does not return {name!r}: return {', '.join(wanted)}.")
        for name in given:
            if name not in wanted:
                raise ValueError(
                    f"{self.label}'s {part} returns {name!r}, which it does not declare: add it to its {where}."
                )


def _not_kept(name: str) -> str:
    if name == "x":
        return "state['x'], the round's start, which it does not declare: add 'start' to its reads"
    return f"state[{name!r}], which is not there: if a node keeps it, add StateVar({name!r}) to its state"
