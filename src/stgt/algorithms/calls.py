"""A method's parts as an engine calls them: each gets what was declared and no more, and must give what it owes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from stgt.algorithms.base import Algorithm
from stgt.algorithms.declare import VECTORS, Fields, Local, MessageVar, State, Vector


def at_stepsize(algorithm: Algorithm, gamma: Any) -> Algorithm:
    """The method with the stepsize of one round in the place of its `gamma`, which may be a schedule."""
    made = copy(algorithm)
    object.__setattr__(made, "gamma", gamma)
    return made


def readable(algorithm: Algorithm, state: State) -> Fields:
    """The state as the method may read it in a round: what it keeps, and x, the round's start, if it declares that."""
    names = [name for name in algorithm.state_fields if name != "x" or "start" in algorithm.reads]
    return Fields({name: state[name] for name in names if name in state}, algorithm.label, _not_kept)


def whole(algorithm: Algorithm, state: State) -> Fields:
    """The state between two rounds, x included: to be looked at, or for a second exchange."""
    return Fields(state, algorithm.label, _not_kept)


def begin(algorithm: Algorithm, x: Vector, gradient: Vector = None, mean: Vector = None) -> dict[str, Vector]:
    """The state before round 0."""
    state = algorithm.init(x, gradient, mean)
    _check_names(algorithm, "init", state, algorithm.state_fields)
    return dict(state)


def after_steps(algorithm: Algorithm, *, start: Vector, end: Vector, gamma: Any, **others: Any) -> Local:
    """What a method is handed after plain steps from `start` to `end`, with their mean direction; `others` by name."""
    direction = (start - end) / (gamma * algorithm.tau)
    parts = {"start": start, "end": end, "direction": direction, "gamma": gamma, **others}
    return Local(algorithm.label, algorithm.reads, **parts)


def make_message(algorithm: Algorithm, state: State, local: Local) -> dict[str, Vector]:
    """What a node sends at the end of a round; `state` is `readable`."""
    return _sent(algorithm, "message", algorithm.message(state, local), algorithm.messages)


def apply_mixed(algorithm: Algorithm, state: State, local: Local, mixed: Mapping[str, Vector]) -> dict[str, Vector]:
    """The state after a node has received the mixture; `state` is `readable`."""
    merged = algorithm.merge(state, local, _received(algorithm, mixed))
    return _merged(algorithm, "merge", merged, mixed, algorithm.messages)


def divides(algorithm: Algorithm) -> bool:
    """Does what a node keeps beside its model depend on its own stepsize, as where it divides by it? Tried on numbers.

    Where it does, Σ_i c_i = 0 needs one sum of stepsizes at all nodes of a round.
    """
    if "gamma" not in algorithm.reads:
        return False
    names = (*algorithm.state_fields, *(sent.name for sent in algorithm.messages), *sorted(VECTORS))
    numbers = iter(1 + (0.618 * k) % 1 for k in range(len(names)))  # all different, so that no two of them cancel
    state = {name: next(numbers) for name in algorithm.state_fields}
    mixed = {sent.name: next(numbers) for sent in algorithm.messages}
    parts = {"round": 0, "participation": 1.0, **dict(zip(sorted(VECTORS), numbers, strict=True))}

    def kept(gamma: float) -> dict[str, Vector]:
        local = Local(algorithm.label, algorithm.reads, gamma=gamma, **parts)
        return apply_mixed(algorithm, readable(algorithm, state), local, mixed)

    try:
        one, two = kept(0.1), kept(0.2)
    except (AttributeError, TypeError):  # one's own method, with more than + − · /: the nodes compare, to be safe
        return True
    return any(one[name] != two[name] for name in one if name != "x")


def serve(algorithm: Algorithm, state: State, mixed: Mapping[str, Vector]) -> dict[str, Vector]:
    """What a server that is a process of its own holds after the mixture; `state` is what it held before."""
    before = Fields(
        {name: state[name] for name in algorithm.server_fields},
        algorithm.label,
        lambda name: f"state[{name!r}] in its serve, which the server does not hold: read what is kept at_server",
    )
    served = algorithm.serve(before, _received(algorithm, mixed))
    _check_names(algorithm, "serve", served, algorithm.server_fields)
    return dict(served)


def make_second_message(algorithm: Algorithm, state: State, gradient: Vector) -> dict[str, Vector]:
    """What is sent in the second exchange, given the gradient at the merged model."""
    message = algorithm.second_message(whole(algorithm, state), gradient)
    return _sent(algorithm, "second_message", message, algorithm.second_messages)


def apply_second_mixed(
    algorithm: Algorithm, state: State, gradient: Vector, mixed: Mapping[str, Vector]
) -> dict[str, Vector]:
    """The state after the second exchange."""
    merged = algorithm.second_merge(whole(algorithm, state), gradient, _received(algorithm, mixed))
    return _merged(algorithm, "second_merge", merged, mixed, algorithm.second_messages)


def _received(algorithm: Algorithm, mixed: Mapping[str, Vector]) -> Fields:
    return Fields(
        mixed, algorithm.label, lambda name: f"mixed[{name!r}], which it does not exchange: add MessageVar({name!r})"
    )


def _not_kept(name: str) -> str:
    if name == "x":
        return "state['x'], the round's start, which it does not declare: add 'start' to its reads"
    return f"state[{name!r}], which is not there: add StateVar({name!r}) to its state_vars, if it is a node's own"


def _sent(
    algorithm: Algorithm, part: str, message: Mapping[str, Vector], declared: tuple[MessageVar, ...]
) -> dict[str, Vector]:
    _check_names(algorithm, part, message, tuple(sent.name for sent in declared), "messages")
    return {sent.name: message[sent.name] for sent in declared}


def _merged(
    algorithm: Algorithm,
    part: str,
    merged: Mapping[str, Vector],
    mixed: Mapping[str, Vector],
    declared: tuple[MessageVar, ...],
) -> dict[str, Vector]:
    _check_names(algorithm, part, merged, algorithm.state_fields)
    for sent in declared:
        if sent.replaces and sent.name in merged and merged[sent.name] is not mixed[sent.name]:
            raise ValueError(
                f"{algorithm.label}'s {part} does more with mixed[{sent.name!r}] than to put it in the field's place: "
                f"leave replaces=True out of MessageVar({sent.name!r}) in its messages."
            )
    return {name: merged[name] for name in algorithm.state_fields}


def _check_names(
    algorithm: Algorithm, part: str, given: Mapping[str, Vector], wanted: tuple[str, ...], where: str = "state_vars"
) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{algorithm.label}'s {part} returns a {type(given).__name__}: return a dict of vectors by name."
        )
    for name in wanted:
        if name not in given:
            raise ValueError(f"{algorithm.label}'s {part} forgets {name!r}: it must return {', '.join(wanted)}.")
    for name in given:
        if name not in wanted:
            raise ValueError(
                f"{algorithm.label}'s {part} returns {name!r}, which it does not declare: add it to its {where}."
            )
