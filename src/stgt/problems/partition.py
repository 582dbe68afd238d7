"""Partitions of samples over nodes: iid, by label, or Dirichlet. Each function returns a list of n index arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_choice, check_count, check_number, check_seed

DIRICHLET_TRIES = 100
Split = Callable[[np.ndarray, int], list[np.ndarray]]  # a function of the labels and the number of nodes


def iid(labels: Any, n: int, seed: int = 0) -> list[np.ndarray]:
    """A random split into n parts whose sizes differ by at most one."""
    labels, n, rng = _start(labels, n, seed)
    return _finish(np.array_split(rng.permutation(len(labels)), n), "iid")


def by_label(
    labels: Any, n: int, classes: int = 1, seed: int = 0, concentration: float | None = None
) -> list[np.ndarray]:
    """Each node holds samples of only `classes` different labels.

    Node i is given the labels i·classes, …, i·classes + classes − 1 (modulo their number, in a random order), so all
    labels are used as evenly as possible. The nodes that were given a label share its samples equally. With a
    `concentration` they share them in proportions drawn from Dirichlet(concentration), so nodes hold unequal numbers:
    the smaller it is, the more unequal. Each node has at least one sample of every label it was given.
    """
    labels, n, rng = _start(labels, n, seed)
    names = np.unique(labels)
    classes = check_count(classes, "classes")
    if classes > len(names):
        raise InputError("classes", classes, f"there are only {len(names)} labels; give at most that many.")
    if n * classes < len(names):
        raise InputError(
            "classes",
            classes,
            f"{n} nodes with {classes} labels each leave some of the {len(names)} labels unused; give classes of at "
            f"least {-(-len(names) // n)}.",
        )
    if concentration is not None:
        concentration = check_number(concentration, "concentration", above=0)
    order = rng.permutation(len(names))
    wants = [{int(order[(i * classes + j) % len(names)]) for j in range(classes)} for i in range(n)]
    parts: list[list[np.ndarray]] = [[] for _ in range(n)]
    for label in range(len(names)):
        members = rng.permutation(np.flatnonzero(labels == names[label]))
        holders = [i for i in range(n) if label in wants[i]]
        if concentration is None:
            shares = np.array_split(members, len(holders))
        else:
            shares = _uneven(members, len(holders), concentration, rng)
        for holder, share in zip(holders, shares, strict=True):
            parts[holder].append(share)
    return _finish([np.concatenate(part) for part in parts], f"label, classes={classes}")


def dirichlet(labels: Any, n: int, alpha: float = 0.5, seed: int = 0) -> list[np.ndarray]:
    """Each label's samples are divided in proportions drawn from Dirichlet(alpha). A small alpha gives different nodes.

    If a node would hold nothing, it is drawn again, up to 100 times.
    """
    labels, n, rng = _start(labels, n, seed)
    alpha = check_number(alpha, "alpha", above=0)
    for _ in range(DIRICHLET_TRIES):
        parts: list[list[np.ndarray]] = [[] for _ in range(n)]
        for name in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == name))
            cuts = (np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1] * len(members)).astype(int)
            for node, share in enumerate(np.split(members, cuts)):
                parts[node].append(share)
        joined = [np.concatenate(part) for part in parts]
        if min(len(part) for part in joined) > 0:
            return _finish(joined, "dirichlet")
    raise InputError(
        "alpha",
        alpha,
        f"in {DIRICHLET_TRIES} draws of Dirichlet({alpha:g}) over {n} nodes some node always had an empty partition; "
        "give a larger alpha, fewer nodes or more samples.",
    )


def in_order(labels: Any, n: int) -> list[np.ndarray]:
    """Samples sorted by label and cut into n parts whose sizes differ by at most one: node 0 holds the smallest."""
    labels, n, _ = _start(labels, n, 0)
    return _finish(np.array_split(np.argsort(labels, kind="stable"), n), "sorted")


def partition(
    labels: Any,
    n: int,
    how: str = "iid",
    *,
    classes: int = 1,
    concentration: float | None = None,
    alpha: float = 0.5,
    seed: int = 0,
) -> list[np.ndarray]:
    """One of the partitions by name: "iid", "label" (`classes`, `concentration`) or "dirichlet" (`alpha`)."""
    ways = named_partitions(classes=classes, concentration=concentration, alpha=alpha, seed=seed)
    return ways[check_choice(how, "partition", ways)](labels, n)


def named_partitions(*, classes: int, alpha: float, seed: int, concentration: float | None = None) -> dict[str, Split]:
    return {
        "iid": partial(iid, seed=seed),
        "label": partial(by_label, classes=classes, seed=seed, concentration=concentration),
        "dirichlet": partial(dirichlet, alpha=alpha, seed=seed),
    }


def held_out(samples: int, test: Any, seed: int) -> np.ndarray:
    """The indices of the test samples, sorted: a share `test` of all, drawn by the seed alone."""
    share = check_number(test, "test", least=0, below=1)
    count = round(share * samples)
    if share > 0 and not 0 < count < samples:
        raise InputError("test", share, f" of {samples} samples is {count}: leave some to test and some to train on.")
    return np.sort(np.random.default_rng([check_seed(seed), samples]).permutation(samples)[:count])


def parts_of(
    given: Any, labels: np.ndarray, n: int | None, ways: Mapping[str, Split], test: np.ndarray
) -> list[np.ndarray]:
    """The index array of each node, without test samples. `given` is such a list, or one of the names in `ways`."""
    if not isinstance(given, str):
        parts = [part[~np.isin(part, test)] for part in _given_parts(given, n, len(labels))]
        for node, part in enumerate(parts):
            if len(part) == 0:
                raise InputError(
                    "test", hint=f" takes all samples of node {node}: give a smaller share or another seed."
                )
        return parts
    check_choice(given, "partition", ways)
    if n is None:
        raise InputError("n", hint=" was left out: give the number of nodes, or a list of index arrays as partition.")
    train = np.setdiff1d(np.arange(len(labels)), test)
    return [train[part] for part in ways[given](labels[train], n)]


def _given_parts(parts: Any, n: int | None, samples: int) -> list[np.ndarray]:
    if not isinstance(parts, Sequence | np.ndarray):
        raise InputError("partition", parts, "give the name of a partition, or the index array of each node.")
    if n is not None and n != len(parts):
        raise InputError("n", n, f", but partition lists {len(parts)} nodes: leave n out or make them equal.")
    if len(parts) == 0:
        raise InputError("partition", hint=" is an empty list: give the index array of each node.")
    arrays = [np.asarray(part) for part in parts]
    for node, part in enumerate(arrays):
        if part.ndim != 1 or len(part) == 0:
            raise InputError(("partition", node), hint=" is empty: each node must hold at least one sample.")
        if not np.issubdtype(part.dtype, np.integer):
            raise InputError(
                ("partition", node), hint=f" holds {part.dtype} numbers: give whole numbers, indices of samples."
            )
        if part.min() < 0 or part.max() >= samples:
            raise InputError(
                ("partition", node), hint=f" has an index outside the {samples} samples: give 0 to {samples - 1}."
            )
    _check_apart(arrays)
    return arrays


def _check_apart(parts: list[np.ndarray]) -> None:
    """A ValueError if a sample would count more than once."""
    every, nodes = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(every, kind="stable")
    again = np.flatnonzero(every[order][1:] == every[order][:-1])
    if len(again):
        one, other = nodes[order[again[0] : again[0] + 2]]
        whom = f"node {one} twice" if one == other else f"nodes {one} and {other}"
        raise InputError(
            "partition", hint=f" gives sample {every[order[again[0]]]} to {whom}: give each to one node, once."
        )


def _uneven(members: np.ndarray, holders: int, concentration: float, rng: np.random.Generator) -> list[np.ndarray]:
    """One sample for each node in `holders`; the others in proportions drawn from Dirichlet(concentration)."""
    left = len(members) - holders
    if left < 0:
        raise InputError(
            "concentration",
            concentration,
            f"a label has {len(members)} samples for {holders} nodes that hold it; give fewer nodes, fewer classes "
            "or more samples.",
        )
    proportions = rng.dirichlet(np.full(holders, concentration))
    cuts = (np.cumsum(proportions)[:-1] * left).astype(int) + np.arange(1, holders)
    return np.split(members, cuts)


def _start(labels: Any, n: int, seed: int) -> tuple[np.ndarray, int, np.random.Generator]:
    labels = np.asarray(labels)
    n = check_count(n, "n")
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError("labels", hint=f" has shape {labels.shape}: give one label for each sample, (samples,).")
    if np.issubdtype(labels.dtype, np.floating) and not np.isfinite(labels).all():
        raise InputError("labels", hint=" holds entries that are not finite: every sample needs a label.")
    if len(labels) < n:
        raise InputError("n", n, f"{len(labels)} samples leave an empty partition; give n of at most {len(labels)}.")
    return labels, n, np.random.default_rng(check_seed(seed))


def _finish(parts: list[np.ndarray], how: str) -> list[np.ndarray]:
    for node, part in enumerate(parts):
        if len(part) == 0:
            raise InputError(
                "partition", hint=f" ({how}): node {node} has an empty partition; give fewer nodes or more samples."
            )
    return [np.sort(part) for part in parts]
