"""The graphs of a study for a page: what is known of each, and its rounds as pictures."""

from __future__ import annotations

from stgt._internal.checks import NotCovered
from stgt._internal.markup import element, many, number, said
from stgt.study.report.study import Study
from stgt.topology import Topology
from stgt.topology.picture import MOST_LINES, facts, pictures

SIZE = 240  # pixels of a picture
MOST_ROUNDS = 48  # of a period
QUICK_UP_TO = 2000  # nodes
DRAWN = 12  # rounds of a schedule without a period


def graphs_html(study: Study) -> str:
    """Each topology once, with the methods that ran on it."""
    found: dict[str, tuple[Topology, list[str]]] = {}
    for method, topology in study.topologies.items():
        found.setdefault(topology.fingerprint, (topology, []))[1].append(method)
    return "".join(_graph(topology, methods) for topology, methods in found.values())


def _graph(topology: Topology, methods: list[str]) -> str:
    rounds = _rounds(topology)
    try:
        shown = pictures(topology, range(rounds), SIZE)
    except Exception as error:  # there are too many, or a user's function fails
        shown, rounds = [element("p", said(f"No picture: {error}."), **{"class": "faint"})], 0
    whole = topology.period is not None and rounds in (0, topology.period)
    part = "" if whole or not rounds else f"the first {many(rounds, 'round')} are drawn"
    words = [*facts(topology), *_mixing(topology), part]
    return element(
        "figure",
        element("div", *(element("div", one, **{"class": "round"}) for one in shown), **{"class": "rounds"}),
        element(
            "figcaption",
            element("b", said(topology.name)),
            element("span", said(" · ".join(word for word in words if word))),
            element("span", said(f"used by {', '.join(methods)}"), **{"class": "faint"}),
        ),
        **{"class": "graph"},
    )


def _rounds(topology: Topology) -> int:
    lines = max(1, topology.n * topology.degree // (2 if topology.symmetric else 1))
    return max(1, min(topology.period or DRAWN, MOST_ROUNDS, MOST_LINES // lines))


def _mixing(topology: Topology) -> list[str]:
    """ρ and the spectral gap, as far as they are known and quick to compute."""
    from stgt.theory import rho, spectral_gap  # which takes a third of a second

    found = []
    if topology.n > QUICK_UP_TO:
        return found
    for name, of in (("ρ", rho), ("spectral gap", spectral_gap)):
        try:
            found.append(f"{name} {number(float(of(topology)))}")
        except NotCovered:  # it never repeats, or is too large
            continue
    return found
