"""Makes docs/images/round.svg: a round of ST-GT in four drawings (`make pictures`).

The points and the arrows are a round of three nodes on a path, 1 – 2 – 3, as the library computes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import stgt
from stgt.study.report.figures import COLOURS

IMAGES = Path(__file__).parent / "images"
TITLE = "A communication round of ST-GT"
DESCRIPTION = (
    "Four drawings in a circle. 1: each node makes τ local steps along −(g + c), without communication. 2: it sends "
    "its model h and its mean direction z to its neighbours. 3: its new model is a weighted mean of its own model and "
    "of those that it received. 4: its correction changes by the weighted mean of the directions minus its own "
    "direction. Then the next round begins."
)
LEGEND = (
    "a, h: a node's model before and after its local steps · g: its stochastic gradient · c: its correction",
    "γ: stepsize · τ: local steps in a round · w_ij: weights of the mixing matrix W",
)

MINIMA = np.array([[-2.6, 0.3], [0.3, 1.3], [2.5, 0.1]])  # of the nodes' own losses
CURVATURES = np.array([[0.9, 0.6], [0.8, 0.6], [0.9, 0.7]])
STARTS = np.array([[-0.5, -1.3], [0.1, -1.1], [0.6, -1.35]])
KNOWN = 0.5  # the nodes begin with this part of the exact corrections
GAMMA, TAU = 0.3, 4

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SERIF = "Georgia, 'Times New Roman', Times, serif"
INK, MUTED, PINK = "#1a1a1a", "#5a5a5a", "#a8447f"
BOLD = {"font_weight": "bold"}
WHITE = {"fill": "#fff", **BOLD}
WIDTH, HEIGHT, GAP = 380, 312, 40  # of a card, and between two
SCALE, MIDDLE = 64.0, np.array([190.0, 168.0])  # pixels per unit, and where 0 is on a card
NEAR = np.array([0.05, -0.2])  # what is in the middle of a card that looks from closer


@dataclass(frozen=True)
class Round:
    """What is drawn of a round, for all nodes."""

    steps: np.ndarray  # models after each local step, (tau + 1, n, 2)
    uncorrected: np.ndarray  # the same without c
    z: np.ndarray  # mean directions, (n, 2)
    mixed_z: np.ndarray
    x: np.ndarray  # models after mixing
    optimum: np.ndarray


def one_round() -> Round:
    """Simulates a round, and repeats its local steps x ← x − γ(g + c)."""
    problem = stgt.problems.Quadratic(np.stack([np.diag(one) for one in CURVATURES]), CURVATURES * MINIMA)
    topology = stgt.topology.from_networkx(nx.path_graph(len(MINIMA)))
    method = stgt.STGT(gamma=GAMMA, tau=TAU)

    def gradients(x: np.ndarray) -> np.ndarray:
        return problem.model.gradients(np, problem.data, x)

    def steps(c: Any) -> np.ndarray:
        x = [STARTS]
        for _ in range(TAU):
            x.append(x[-1] - GAMMA * (gradients(x[-1]) + c))
        return np.array(x)

    c = KNOWN * (gradients(STARTS).mean(axis=0) - gradients(STARTS))
    path = steps(c)
    z = (path[0] - path[-1]) / (GAMMA * TAU)
    trace = stgt.simulate(method, problem, topology, 1, x0=STARTS, state0={"c": c}, engine="numpy")
    return Round(path, steps(0.0), z, z + trace.state["c"][0] - c, trace.x[0], problem.optimum)


# -- pieces of SVG -----------------------------------------------------------------------------------------------------


def with_indices(words: str) -> str:
    """Sets what follows an underscore as an index."""
    found, low = [], False
    for part in filter(None, re.split(r"(_\w+)", words)):
        index = part.startswith("_")
        shift = 5 * (index - low)
        size = ' font-size="70%"' if index else ""
        found.append(f'<tspan dy="{shift}"{size}>{part.lstrip("_")}</tspan>')
        low = index
    return "".join(found)


def text(x: float, y: float, words: str, size: float = 14, anchor: str = "start", **style: Any) -> str:
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    where = f'x="{x:.0f}" y="{y:.0f}" font-size="{size:g}" text-anchor="{anchor}"'
    return f"<text {where}{given}>{with_indices(words)}</text>"


def points(at: Any) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in at)


def line(at: Any, colour: str, width: float = 2.6, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{points(at)}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def arrow(start: Any, end: Any, colour: str, width: float = 2.6) -> str:
    start, end = np.array(start), np.array(end)
    along = (end - start) / np.linalg.norm(end - start)
    across = 4.5 * np.array([-along[1], along[0]])
    head = [end + 2 * along, end - 8 * along + across, end - 8 * along - across]
    return line([start, end - 4 * along], colour, width) + f'<polygon points="{points(head)}" fill="{colour}"/>'


def dot(at: Any, colour: str, radius: float) -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}" fill="{colour}"/>'


def ring(at: Any, colour: str) -> str:
    return dot(at, colour, 6) + dot(at, "#fff", 4)


def cross(at: Any, colour: str) -> str:
    path = f"M{at[0] - 6:.1f} {at[1] - 6:.1f}l12 12m0-12l-12 12"
    return f'<path d="{path}" stroke="{colour}" stroke-width="3"/>'


def star(at: Any) -> str:
    turns, radii = np.pi * np.arange(10) / 5, np.tile([11.0, 4.5], 5)
    corners = at + radii[:, None] * np.stack([np.sin(turns), -np.cos(turns)], axis=1)
    return f'<polygon points="{points(corners)}" fill="{COLOURS[5]}" stroke="{INK}"/>'


def node(at: Any, i: int) -> str:
    """A disc with the node's number."""
    return dot(at, COLOURS[i], 10) + text(at[0], at[1] + 4.5, str(i + 1), 13, "middle", **WHITE)


# -- the four drawings -------------------------------------------------------------------------------------------------


def far(x: np.ndarray) -> np.ndarray:
    """Where models are on a card."""
    return MIDDLE + SCALE * x * (1, -1)


def near(x: np.ndarray) -> np.ndarray:
    return MIDDLE + 1.5 * SCALE * (x - NEAR) * (1, -1)


def local_steps(round: Round) -> list[str]:
    drawn = []
    for i, colour in enumerate(COLOURS[: len(MINIMA)]):
        path, minimum = far(round.steps[:, i]), far(MINIMA[i])
        drawn += [line(far(round.uncorrected[:, i]), colour, 2, "2 4"), line(path, colour)]
        drawn += [*(dot(x, colour, 3.5) for x in path[1:-1]), ring(path[0], colour), node(path[-1], i)]
        drawn += [cross(minimum, colour), text(path[0, 0] + 9, path[0, 1] + 6, f"a_{i + 1}", fill=colour)]
    x, y = far(round.optimum)
    left, top = far(MINIMA[0])
    drawn += [star((x, y)), text(x - 14, y - 6, "x*", 15, "end", **BOLD)]
    drawn.append(text(left - 8, top - 14, "minimum of node 1", 13, fill=COLOURS[0]))
    return [*drawn, text(14, 257, "dotted: without c", 13, fill=MUTED)]


def exchange(round: Round) -> list[str]:
    at, drawn = near(round.steps[-1]), []
    for i, j in ((0, 1), (1, 2)):
        length, middle = np.linalg.norm(at[j] - at[i]), (at[i] + at[j]) / 2
        along = (at[j] - at[i]) / length
        side = np.array([along[1], -along[0]])
        for sender, sign in ((i, 1), (j, -1)):
            half, lane = sign * (length / 2 - 16) * along, middle + sign * 6 * side
            drawn.append(arrow(lane - half, lane + half, COLOURS[sender]))
            x, y = middle + sign * 22 * side
            drawn.append(text(x, y + 5, f"h_{sender + 1}, z_{sender + 1}", 14, "middle", fill=COLOURS[sender]))
    return [*drawn, *(node(x, i) for i, x in enumerate(at))]


def mixing(round: Round) -> list[str]:
    drawn = []
    for i, (before, after) in enumerate(zip(near(round.steps[-1]), near(round.x), strict=True)):
        drawn += [line([before, after], COLOURS[i]), ring(before, COLOURS[i]), node(after, i)]
        drawn.append(text(before[0], before[1] - 12, f"h_{i + 1}", 14, "middle", fill=COLOURS[i]))
    return drawn


def correction(round: Round) -> list[str]:
    """The directions of node 1: its local steps go along −z."""
    foot = np.array([225.0, 248.0])
    own, mean = (foot - 165 * z[0] * (1, -1) for z in (round.z, round.mixed_z))
    (x, y), (right, up), (high, top) = (foot + own) / 2, (foot + mean) / 2, (own + mean) / 2
    return [
        arrow(foot, own, COLOURS[0]),
        arrow(foot, mean, INK),
        arrow(own, mean, PINK),
        node(foot, 0),
        text(x - 14, y, "its own direction, −z_1", 14, "end", fill=COLOURS[0]),
        text(right + 12, up, "the mean, −Σ_j w_1j z_j"),
        text(high, top - 14, "the difference corrects later steps", 14, "middle", fill=PINK),
    ]


CARDS = (  # clockwise: the place, the title, what happens, the equation, the drawing
    ((0, 0), "Local steps", "τ times, on each node's own data", "x_i ← x_i − γ(g_i + c_i)", local_steps),
    ((1, 0), "Exchange", "once, with the neighbours on the graph", "send h_i and z_i = (a_i − h_i)/(γτ)", exchange),
    ((1, 1), "Mixing", "each node averages with its neighbours", "x_i ← Σ_j w_ij h_j", mixing),
    ((0, 1), "Correction", "later steps turn to the mean direction", "c_i ← c_i + Σ_j w_ij z_j − z_i", correction),
)


def card(number: int, place: tuple[int, int], title: str, words: str, equation: str, drawn: list[str]) -> list[str]:
    x, y = place[0] * (WIDTH + GAP), place[1] * (HEIGHT + GAP)
    return [
        f'<g transform="translate({x} {y})">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#f6f7f9" stroke="#d5d8dd"/>',
        dot((26, 28), INK, 13),
        text(26, 33, str(number), 15, "middle", **WHITE),
        text(48, 34, title, 19, **BOLD),
        text(48, 56, words, 14.5, fill=MUTED),
        *drawn,
        text(WIDTH / 2, HEIGHT - 20, equation, 21, "middle", font_family=SERIF, font_style="italic"),
        "</g>",
    ]


def picture() -> str:
    round, drawn = one_round(), []
    for k, (place, title, words, equation, draw) in enumerate(CARDS):
        drawn += card(k + 1, place, title, words, equation, draw(round))
    across, down, far_side, low = WIDTH / 2, HEIGHT / 2, WIDTH + GAP, HEIGHT + GAP
    drawn += [
        arrow((WIDTH + 5, down), (far_side - 8, down), INK, 3.5),
        arrow((far_side + across, HEIGHT + 5), (far_side + across, low - 8), INK, 3.5),
        arrow((far_side - 5, low + down), (WIDTH + 8, low + down), INK, 3.5),
        arrow((across, low - 5), (across, HEIGHT + 8), INK, 3.5),
        text(across + 16, HEIGHT + GAP / 2 + 5, "next round", 15),
        *(
            text(WIDTH + GAP / 2, low + HEIGHT + 24 + 21 * k, one, 14, "middle", fill=MUTED)
            for k, one in enumerate(LEGEND)
        ),
    ]
    width, height = far_side + WIDTH + 20, low + HEIGHT + 66
    size = f'viewBox="-10 -10 {width} {height}" width="{width}" height="{height}"'
    top = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc" '
        f'font-family="{SANS}" fill="{INK}">',
        f'<title id="title">{TITLE}</title>',
        f'<desc id="desc">{DESCRIPTION}</desc>',
        f'<rect x="-10" y="-10" width="{width}" height="{height}" rx="10" fill="#fff"/>',
    ]
    return "\n".join([*top, *drawn, "</svg>\n"])


if __name__ == "__main__":
    (IMAGES / "round.svg").write_text(picture(), encoding="utf-8")
