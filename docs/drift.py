"""Makes docs/images/drift.gif: FedAvg and ST-GT on three nodes with a quadratic each (`make pictures`).

The runs are the library's, and the numbers in the picture are computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image

import stgt
from stgt.study.report.figures import COLOURS, MARKS, STYLE

IMAGES = Path(__file__).parent / "images"

# Each node's quadratic: its minimum, its curvatures along its two axes, and the direction of the first.
MINIMA = np.array([[-2.0, 1.4], [2.2, 1.6], [0.3, -2.0]])
CURVATURES = np.array([[3.0, 0.3], [1.0, 0.3], [0.6, 0.6]])
ANGLES = np.deg2rad([30.0, -40.0, 80.0])
START = np.array([2.4, -2.2])
GAMMA, TAU, ROUNDS = 0.15, 10, 24
METHODS = (stgt.FedAvg(gamma=GAMMA, tau=TAU), stgt.STGT(gamma=GAMMA, tau=TAU))
HEADINGS = ("FedAvg: steps along $-g_i$", "ST-GT: steps along $-(g_i + c_i)$")
ENDINGS = (
    "The nodes drift apart; their mean stays wrong.",
    "The corrections cancel the drift.",
)
SLOW, MIDDLE = 3, 7  # rounds before SLOW show each local step, rounds before MIDDLE every second one
VIEW = ((-2.9, 3.0), (-2.7, 2.3))
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
MODEL: dict[str, Any] = {"linestyle": "none", "markersize": 8, "markeredgecolor": "white", "zorder": 7}
MEAN: dict[str, Any] = {"color": "black", "linewidth": 1.6, "marker": "o", "markersize": 5, "zorder": 6}
CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 7, "markeredgewidth": 2}
STAR: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 18, "color": COLOURS[5]}


def hessians() -> np.ndarray:
    """A_i, (3, 2, 2)."""
    turn = np.array([[np.cos(ANGLES), -np.sin(ANGLES)], [np.sin(ANGLES), np.cos(ANGLES)]]).transpose(2, 0, 1)
    return turn * CURVATURES[:, None, :] @ turn.transpose(0, 2, 1)


def quadratics() -> stgt.problems.Problem:
    """f_i(x) = ½(x − x_i*)ᵀA_i(x − x_i*), but for a constant."""
    A = hessians()
    return stgt.problems.Quadratic(A, np.einsum("ijk,ik->ij", A, MINIMA))


@dataclass(frozen=True)
class Run:
    """A run: all models after each local step of each round, (rounds, tau + 1, n, 2), and x̄ at the start of each."""

    steps: np.ndarray
    means: np.ndarray
    distances: np.ndarray  # ‖x̄ − x*‖ at the start of each round


def simulated(algorithm: stgt.Algorithm) -> Run:
    """Simulates, and repeats the local steps x ← x − γ(g + c) of each round from its state."""
    problem, topology = quadratics(), stgt.topology.complete(len(MINIMA))
    states = [algorithm.init(np.broadcast_to(START, MINIMA.shape))]

    def keep(_: int, state: dict[str, np.ndarray]) -> None:
        states.append({name: value[0] for name, value in state.items()})

    stgt.simulate(algorithm, problem, topology, ROUNDS, x0=START, engine="numpy", callback=keep)
    steps = []
    for state in states:
        x = [state["x"]]
        for _ in range(algorithm.tau):
            g = problem.model.gradients(np, problem.data, x[-1])
            x.append(x[-1] - algorithm.gamma * (g + algorithm.correction(state, x[-1])))
        steps.append(x)
    means = np.array([state["x"].mean(axis=0) for state in states])
    return Run(np.array(steps), means, np.linalg.norm(means - problem.optimum, axis=1))


@dataclass(frozen=True)
class Frame:
    """A moment: round r after `step` local steps, and the part `mixed` of the way from there to the mean."""

    r: int
    step: int = 0
    mixed: float = 0.0
    milliseconds: int = 80
    words: str = ""


def frames() -> Iterator[Frame]:
    yield Frame(0, milliseconds=1300, words="All three nodes begin at the same model.")
    for r in range(ROUNDS):
        steps = f"Round {r + 1}: {TAU} local steps, each node on its own loss"
        mixing = f"Round {r + 1}: the nodes exchange messages and average"
        if r < SLOW:
            yield from (Frame(r, step, words=steps) for step in range(1, TAU))
            yield Frame(r, TAU, milliseconds=300, words=steps)
            yield from (Frame(r, TAU, part, words=mixing) for part in (0.35, 0.7))
            yield Frame(r, TAU, 1.0, milliseconds=400, words=mixing)
        elif r < MIDDLE:
            yield from (Frame(r, step, milliseconds=60, words=steps) for step in range(2, TAU + 1, 2))
            yield Frame(r, TAU, 1.0, milliseconds=100, words=mixing)
        else:
            yield Frame(r, TAU, words=f"Round {r + 1}")
    yield Frame(ROUNDS, TAU, milliseconds=3000, words=f"After {ROUNDS} rounds: the next {TAU} local steps")


def short(value: float) -> str:
    """0.52, or 9·10⁻⁹."""
    if value >= 0.01:
        return f"{value:.2f}"
    digit, power = f"{value:.0e}".split("e-")
    return f"{digit}·10⁻{str(int(power)).translate(RAISED)}"


def draw_backdrop(axes: Any, heading: str) -> None:
    """What does not move: contours of f in grey and of each f_i in the colour of its node, and all minima."""
    x, y = (np.linspace(*ends, 160) for ends in VIEW)
    away = np.stack(np.meshgrid(x, y), axis=-1)[None] - MINIMA[:, None, None]
    own = 0.5 * np.einsum("iabj,ijk,iabk->iab", away, hessians(), away)
    f = own.mean(axis=0)
    axes.contour(x, y, f, levels=f.min() + np.linspace(0.3, 2.3, 8) ** 2, colors="0.75", linewidths=0.9)
    for values, colour, minimum in zip(own, COLOURS, MINIMA, strict=False):
        axes.contour(x, y, values, levels=[0.12, 0.5], colors=colour, alpha=0.4, linewidths=1)
        axes.plot(*minimum, color=colour, **CROSS)
    axes.plot(*quadratics().optimum, markeredgecolor="black", **STAR)
    axes.set(xlim=VIEW[0], ylim=VIEW[1], xticks=[], yticks=[], aspect="equal")
    axes.set_title(heading, fontsize=12)
    for side in axes.spines.values():
        side.set(visible=True, color="0.6")


def draw_frame(axes: Any, run: Run, frame: Frame, ending: str) -> list[Any]:
    """What moves; returns it, to be removed."""
    paths = run.steps[frame.r, : frame.step + 1]
    ends = paths[-1] + frame.mixed * (paths[-1].mean(axis=0) - paths[-1])
    done = frame.r + (frame.mixed == 1)  # rounds
    known = run.means[: done + 1]
    drawn = [*axes.plot(*known.T, **MEAN)]
    for i, (path, end) in enumerate(zip(paths.transpose(1, 0, 2), ends, strict=True)):
        drawn += axes.plot(*path.T, color=COLOURS[i], linewidth=1.4, marker=".", markersize=4, zorder=5)
        drawn += axes.plot(*end, color=COLOURS[i], marker=MARKS[i], **MODEL)
    under = {"transform": axes.transAxes, "fontsize": 11, "ha": "center", "va": "top"}
    drawn.append(axes.text(0.5, -0.03, f"The mean model is {short(run.distances[done])} from x*.", **under))
    if frame.r == ROUNDS:
        drawn.append(axes.text(0.5, -0.10, ending, **under))
    return drawn


def draw_legend(figure: Any) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D

    three = list(zip(COLOURS[: len(MINIMA)], MARKS, strict=False))
    handles = {
        "a node's model": tuple(Line2D([], [], color=colour, marker=mark, **MODEL) for colour, mark in three),
        "the minimum of its own loss": tuple(Line2D([], [], color=colour, **CROSS) for colour, _ in three),
        "the mean model": Line2D([], [], **MEAN),
        "x*, the minimum of the mean loss": Line2D([], [], markeredgecolor="black", **STAR),
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="lower center",
        ncols=4,
        frameon=False,
        fontsize=8.5,
        columnspacing=1.0,
        handletextpad=0.5,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)},
    )


def drift(path: Path) -> None:
    """The animation, as a GIF."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs, pictures = [simulated(method) for method in METHODS], []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.9), dpi=150)
        canvas, panels = FigureCanvasAgg(figure), figure.subplots(1, 2)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.86, bottom=0.19, wspace=0.03)
        draw_legend(figure)
        for axes, heading in zip(panels, HEADINGS, strict=True):
            draw_backdrop(axes, heading)
        for frame in frames():
            drawn = [figure.text(0.5, 0.95, frame.words, fontsize=12, weight="bold", ha="center")]
            for axes, run, ending in zip(panels, runs, ENDINGS, strict=True):
                drawn += draw_frame(axes, run, frame, ending)
            canvas.draw()
            pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))
            for one in drawn:
                one.remove()
    palette = pictures[-1].quantize(128, kmeans=2)
    palette.putpalette([255 if value > 244 else value for value in palette.getpalette()])  # white is white
    first, *others = (one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures)
    times = [frame.milliseconds for frame in frames()]
    first.save(path, save_all=True, append_images=others, duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    drift(IMAGES / "drift.gif")
