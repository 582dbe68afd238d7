"""A topology as a notebook shows it: what is known of it in words, and its links as a small picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from stgt._internal.markup import FAINT, element, label, line, many, said, svg
from stgt.topology.structure import Server

if TYPE_CHECKING:
    from stgt.topology.base import Topology

MOST_NODES = 64
MOST_ROUNDS = 8  # of a period, drawn side by side
MOST_LINES = 1000  # in all
MOST_HEADS = 100  # of a picture; more would hide the nodes, and the words say that it is directed
LARGE, SMALL = 170, 112  # pixels of a picture alone, and of one of several
MARGIN, CAPTION = 8, 16
Point = tuple[float, float]


def topology_html(topology: Topology) -> str:
    """All of it, as one piece of HTML."""
    name = line(element("b", said(topology.name)))
    try:
        below = _pictures(topology)
    except (
        Exception
    ) as error:  # there are too many, or a user's function fails; what is known in words is shown all the same
        below = line(said(f"no picture: {error}"), faint=True)
    return element("div", name, line(*(said(fact) for fact in facts(topology))), below)


def facts(topology: Topology) -> list[str]:
    """What is known of it without computing anything, in a few words each."""
    period, n = topology.period, topology.n
    if period is None:
        repeats = "random, drawn anew each round" if topology.random else "never repeats"
    else:
        repeats = "static" if period == 1 else f"period {period}"
    found = [many(n, "node"), repeats, f"degree {topology.degree:,}"]
    known = period is not None or topology.random
    found.append("symmetric" if topology.symmetric else "directed" if known else "counts as directed")
    if topology.has_push:
        found.append("pulls by a row-stochastic, pushes by a column-stochastic matrix")
    elif not topology.doubly_stochastic:
        found.append("row-stochastic only")
    if topology.has_server:
        called = "all" if topology.sampled == n else f"{topology.sampled:,} of {n:,}"
        found.append(f"a server calls {called} workers a round")
    return found


def _pictures(topology: Topology) -> str:
    period = topology.period or 1
    rounds = range(period if period <= MOST_ROUNDS and not topology.has_server else 1)
    return "".join(pictures(topology, rounds, LARGE if len(rounds) == 1 else SMALL))


def pictures(topology: Topology, rounds: Iterable[int], size: float) -> list[str]:
    """A picture of each of the rounds, drawn alike; a ValueError says why there is none."""
    if topology.n > MOST_NODES:
        raise ValueError(f"more than {MOST_NODES} nodes")
    if topology.has_server:
        return [_server(topology, r, size) for r in rounds]
    heard = {r: (topology.matrix(r) != 0) | (topology.matrix(r, pushed=True) != 0) for r in rounds}
    for links in heard.values():
        np.fill_diagonal(links, False)
    if sum(int(np.triu(links | links.T).sum()) for links in heard.values()) > MOST_LINES:
        raise ValueError("too many links")
    mutual = all(np.array_equal(links, links.T) for links in heard.values())
    most = max(int(links.sum()) for links in heard.values())
    arrows = not mutual and topology.n <= MOST_NODES // 2 and most <= MOST_HEADS
    return [
        _picture(size, f"{topology.name}, round {r}", _caption(topology, r), *_peers(links, size, arrows))
        for r, links in heard.items()
    ]


def _caption(topology: Topology, r: int) -> str:
    return "" if topology.period == 1 else f"round {r}"


def _picture(size: float, title: str, caption: str, *inside: str) -> str:
    below = CAPTION if caption else 0
    words = [label(size / 2, size + below / 2 - 2, caption, "middle", faint=True)] if caption else []
    return svg(size, size + below, title, *inside, *words)


def _peers(links: np.ndarray, size: float, arrows: bool) -> list[str]:
    """Lines between the nodes that hear each other, and heads at the ends that hear where not all are mutual."""
    places, radius = _circle(len(links), size)
    pairs = np.argwhere(np.triu(links | links.T))
    drawn = [_lines([(places[i], places[j]) for i, j in pairs])]
    if arrows:
        drawn += [_head(places[j], places[i], radius) for i, j in np.argwhere(links)]
    return drawn + [_node(place, radius) for place in places]


def _server(topology: Topology, r: int, size: float) -> str:
    """Spokes between the server and the workers of a round; heads where those who speak and who hear differ."""
    structure, n = topology.structure, topology.n
    speaks = topology.active(r)
    hears = speaks
    if isinstance(structure, Server):
        hears = np.isin(np.arange(n), structure.receivers(np, topology.seed, r))
    places, radius = _circle(n, size)
    middle, half = (size / 2, size / 2), 7.0
    drawn = [_lines([(middle, places[i]) for i in np.flatnonzero(speaks | hears)])]
    if not np.array_equal(speaks, hears):
        drawn += [_head(places[i], middle, half) for i in np.flatnonzero(speaks)]
        drawn += [_head(middle, places[i], radius) for i in np.flatnonzero(hears)]
    drawn += [_node(places[i], radius, busy=bool(speaks[i] | hears[i])) for i in range(n)]
    corner = size / 2 - half
    drawn.append(element("rect", x=corner, y=corner, width=2 * half, height=2 * half, rx=2, fill="currentColor"))
    return _picture(size, f"{topology.name}, round {r}", _caption(topology, r), *drawn)


def _circle(n: int, size: float) -> tuple[list[Point], float]:
    """Where the nodes are, the first at the top and the others clockwise, and how large they are drawn."""
    reach = size / 2 - MARGIN
    turns = [2 * math.pi * i / n for i in range(n)]
    places = [(size / 2 + reach * math.sin(turn), size / 2 - reach * math.cos(turn)) for turn in turns]
    places = places if n > 1 else [(size / 2, size / 2)]
    return places, max(1.8, min(size / 34, 0.3 * reach * math.pi / n + 1))


def _node(place: Point, radius: float, busy: bool = True) -> str:
    """A disc, or a circle for one that rests."""
    x, y = place
    if busy:
        return element("circle", cx=x, cy=y, r=radius, fill="currentColor")
    return element("circle", cx=x, cy=y, r=radius, fill="none", stroke="currentColor", stroke_opacity=FAINT)


def _lines(ends: list[tuple[Point, Point]]) -> str:
    """Straight lines, as one path."""
    path = "".join(f"M{a[0]:.2f} {a[1]:.2f}L{b[0]:.2f} {b[1]:.2f}" for a, b in ends)
    opacity = 0.7 if len(ends) <= 100 else 0.4
    return element("path", d=path, stroke="currentColor", stroke_opacity=opacity, fill="none") if ends else ""


def _head(tail: Point, tip: Point, radius: float) -> str:
    """The head of an arrow that ends at the rim of a node."""
    length = math.dist(tail, tip) or 1.0
    along = (tip[0] - tail[0]) / length, (tip[1] - tail[1]) / length
    long, wide = 3.0 + 0.8 * radius, 1.2 + 0.4 * radius
    x, y = tip[0] - radius * along[0], tip[1] - radius * along[1]
    back = x - long * along[0], y - long * along[1]
    sides = [(back[0] - turn * wide * along[1], back[1] + turn * wide * along[0]) for turn in (1, -1)]
    path = "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in [(x, y), *sides]) + "Z"
    return element("path", d=path, fill="currentColor")
