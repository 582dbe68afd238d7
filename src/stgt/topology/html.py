"""A topology as a notebook shows it: facts in words, and a small picture of its links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stgt._internal.markup import many, render
from stgt.topology.layout import Layout, layout

if TYPE_CHECKING:
    from stgt.topology.base import Topology

MOST_NODES = 64
MOST_ROUNDS = 8  # of a period, drawn next to each other
MOST_LINES = 1000
MOST_HEADS = 100  # in a picture; more would hide the nodes, and the facts say that the topology is directed
LARGE, SMALL = 170, 112  # pixels of a single picture, and of one of several
MARGIN, CAPTION = 8, 16
SERVER = 7.0  # half of the side of its square
Point = tuple[float, float]


def topology_html(topology: Topology) -> str:
    """The HTML of a topology."""
    period, drawn, unknown = topology.period or 1, list[dict[str, Any]](), ""
    rounds = range(period if period <= MOST_ROUNDS and not topology.has_server else 1)
    try:
        drawn = pictures(topology, rounds, LARGE if len(rounds) == 1 else SMALL)
    except Exception as error:  # too many nodes, or a user's function fails: still show the facts
        unknown = str(error) or repr(error)
    return render(
        "topology/topology.html.j2", topology=topology, facts=facts(topology), pictures=drawn, unknown=unknown
    )


def facts(topology: Topology) -> list[str]:
    """What is known about the topology without any computation, in a few words each."""
    period, n = topology.period, topology.n
    if period is None:
        repeats = "random, drawn again each round" if topology.random else "never repeats"
    else:
        repeats = "static" if period == 1 else f"period {period}"
    found = [many(n, "node"), repeats, f"degree {topology.degree:,}"]
    known = period is not None or topology.random
    found.append("symmetric" if topology.symmetric else "directed" if known else "counts as directed")
    if topology.has_push:
        found.append("mixes models by a row-stochastic, trackers by a column-stochastic matrix")
    elif not topology.doubly_stochastic:
        found.append("only row-stochastic")
    if topology.has_server:
        called = "all" if topology.sampled == n else f"{topology.sampled:,} of {n:,}"
        found.append(f"a server samples {called} workers per round")
    return found


def pictures(topology: Topology, rounds: Iterable[int], size: float) -> list[dict[str, Any]]:
    """The data of each round's picture for the template; NotCovered if there are too many nodes or links."""
    rounds = list(rounds)
    drawn = layout(topology, rounds, most_nodes=MOST_NODES, most_lines=MOST_LINES, most_heads=MOST_HEADS)
    return [_picture(drawn, r, size) for r in rounds]


def _picture(drawn: Layout, r: int, size: float) -> dict[str, Any]:
    topology, n, reach = drawn.topology, drawn.topology.n, size / 2 - MARGIN
    places: list[Point] = [(size / 2 + reach * x, size / 2 - reach * y) for x, y in drawn.places.tolist()]
    radius = max(1.8, min(size / 34, 0.3 * reach * math.pi / n + 1))
    radii = [radius] * n + [SERVER]
    lines = [(places[j], places[i]) for i, j in drawn.lines(r)]
    caption = "" if topology.period == 1 else f"round {r}"
    return {
        "size": size,
        "height": size + (CAPTION if caption else 0),
        "title": f"{topology.name}, round {r}",
        "caption": caption,
        "lines": "".join(f"M{a[0]:.2f} {a[1]:.2f}L{b[0]:.2f} {b[1]:.2f}" for a, b in lines),
        "opacity": 0.7 if len(lines) <= 100 else 0.4,
        "heads": [_head(places[i], places[j], radii[j]) for i, j in drawn.links(r)] if drawn.arrows else [],
        "nodes": [(*places[i], bool(busy)) for i, busy in enumerate(drawn.working(r)[:n])],
        "radius": radius,
        "server": SERVER if topology.has_server else None,
    }


def _head(tail: Point, tip: Point, radius: float) -> str:
    """The path of an arrow head that touches the rim of a node."""
    length = math.dist(tail, tip) or 1.0
    along = (tip[0] - tail[0]) / length, (tip[1] - tail[1]) / length
    long, wide = 3.0 + 0.8 * radius, 1.2 + 0.4 * radius
    x, y = tip[0] - radius * along[0], tip[1] - radius * along[1]
    back = x - long * along[0], y - long * along[1]
    sides = [(back[0] - turn * wide * along[1], back[1] + turn * wide * along[0]) for turn in (1, -1)]
    return "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in [(x, y), *sides]) + "Z"
