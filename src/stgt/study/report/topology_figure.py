"""Pictures of a topology: its graph, its eigenvalues and how fast its nodes agree; an animation of a schedule."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from stgt._internal.files import write_atomically, writing
from stgt._internal.markup import many, number
from stgt.study.report.figures import COLOURS, STYLE, picture_paths, save_pictures
from stgt.study.report.topology_stats import FEWEST, TopologyStats, messages, near_one
from stgt.topology.layout import Layout

BLUE, ORANGE, INK, GREY = COLOURS[0], COLOURS[1], "#1b1f24", "#b9c0c8"
MILLISECONDS = 700  # the duration of a frame
FRAMES = 64
NUMBERED = 40  # up to this many nodes on a circle are drawn with their numbers
DPI = 100  # the resolution of the animation


def draw_topology(found: TopologyStats, path: Path | str) -> list[Path]:
    """Draws a topology and its numbers side by side as PNG and PDF, or in the format of `path`; returns the files."""
    import matplotlib

    paths = picture_paths(path)
    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(10.8, 4.0), layout="constrained")
        graph, plane, curve = canvas.subplots(1, 3, width_ratios=[1.05, 1, 1.1])
        if found.drawing is None:
            _note(graph, f"No links are drawn: {found.unknown['picture of the links']}.")
        else:
            _Graph(graph, found.drawing).light(0)
            graph.set_title("round 0; grey: links of other rounds" if found.changes else "links")
        _eigenvalues(plane, found)
        _agreement(curve, found)
        canvas.suptitle(f"{found.topology.name}:  {'  ·  '.join(_facts(found))}", fontsize=10)
        return save_pictures(canvas, paths)


def animate(found: TopologyStats, path: Path | str) -> Path:
    """Writes a GIF of a schedule: the links of each round, next to the decreasing distance to agreement."""
    import matplotlib

    if found.drawing is None:
        raise ValueError(f"{found.topology.name} cannot be animated: {found.unknown['picture of the links']}.")
    with matplotlib.rc_context(STYLE):
        frames = _frames(found, found.drawing)

    def write(file: Path) -> None:
        frames[0].save(file, save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0, optimize=True)

    with writing(Path(path)):
        return write_atomically(Path(path).expanduser(), write)


def _frames(found: TopologyStats, drawing: Layout) -> list[Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from PIL import Image

    canvas = Canvas(figsize=(7.6, 3.8), dpi=DPI, layout="constrained")
    screen = FigureCanvasAgg(canvas)
    graph, curve = canvas.subplots(1, 2, width_ratios=[1, 1.1])
    lit = _Graph(graph, drawing)
    _agreement(curve, found)
    for line in curve.lines:
        line.set_color(GREY)
    so_far = curve.plot([], [], "-o", color=ORANGE, markersize=5, linewidth=2, zorder=5)[0]
    canvas.suptitle(found.topology.name, fontsize=10)
    frames = []
    for r in range(min(found.rounds, FRAMES)):
        lit.light(r)
        graph.set_title(f"round {r}")
        if found.distances is not None:
            so_far.set_data(np.arange(r + 2), np.maximum(found.distances[: r + 2], curve.get_ylim()[0]))
        screen.draw()
        picture = Image.fromarray(np.asarray(screen.buffer_rgba())[:, :, :3].copy())
        frames.append(picture.quantize(96, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
    return frames


class _Graph:
    """A graph on a pair of axes, which can show one round after another."""

    def __init__(self, axes: Any, drawing: Layout):
        from matplotlib.collections import LineCollection

        self.axes, self.drawing = axes, drawing
        places, n = drawing.places, drawing.topology.n
        self.size = float(np.clip(5000 / max(n, 1) / 4, 8, 130))
        axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        axes.axis("off")
        if drawing.topology.period != 1:
            axes.add_collection(LineCollection(list(places[drawing.all_lines]), colors=GREY, linewidths=0.6, alpha=0.6))
        few = len(drawing.links(0)) <= 200
        self.lines = LineCollection([], colors=BLUE, linewidths=1.4 if few else 0.6, alpha=0.9 if few else 0.5)
        axes.add_collection(self.lines)
        self.nodes = axes.scatter(*places[:n].T, s=self.size, zorder=3, linewidths=1.0, edgecolors=INK)
        if drawing.topology.has_server:
            axes.scatter(*places[n:].T, s=180, marker="s", color=ORANGE, edgecolors=INK, zorder=4)
        if n <= NUMBERED and _is_circle(places[:n]):
            look = {"fontsize": 7, "ha": "center", "va": "center", "color": "#5b6570"}
            for i, (x, y) in enumerate(places[:n] * 1.12):
                axes.text(x, y, str(i), **look)
        self.heads: list[Any] = []

    def light(self, r: int) -> None:
        """Shows the links of round r, and which nodes take part."""
        links, places = self.drawing.links(r), self.drawing.places
        self.lines.set_segments(list(places[links]))
        working = self.drawing.working(r)
        self.nodes.set_facecolors([INK if one else "white" for one in working])
        for head in self.heads:
            head.remove()
        self.heads = []
        if self.drawing.arrows and len(links):
            tail, tip = places[links[:, 0]], places[links[:, 1]]
            along = (tip - tail) / np.maximum(np.linalg.norm(tip - tail, axis=1, keepdims=True), 1e-9)
            share = float(np.clip(16 / len(places), 0.4, 1.0))
            look = {"angles": "xy", "pivot": "tip", "color": BLUE, "scale": 14, "width": 0.001, "zorder": 2.5}
            head = {"headwidth": 45 * share, "headlength": 60 * share, "headaxislength": 60 * share}
            self.heads = [self.axes.quiver(*(tip - 0.06 * along * share**0.5).T, *along.T, **head, **look)]


def _is_circle(places: np.ndarray) -> bool:
    return bool(np.allclose(np.linalg.norm(places, axis=1), 1.0))


def _eigenvalues(axes: Any, found: TopologyStats) -> None:
    if not found.eigenvalues:
        _note(axes, f"No eigenvalues: {found.unknown['eigenvalues']}.")
        return
    if all(np.isrealobj(values) for values in found.eigenvalues.values()):
        _on_a_line(axes, found.eigenvalues)
        return
    turns = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turns), np.sin(turns), color=GREY, linewidth=1)
    for k, (name, values) in enumerate(found.eigenvalues.items()):
        axes.plot(
            np.real(values), np.imag(values), "ox"[k], color=COLOURS[k], markersize=4 + 2 * k, alpha=0.8, label=name
        )
    axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xlabel="real part", ylabel="imaginary part")
    _titled(axes, found.eigenvalues)


def _on_a_line(axes: Any, eigenvalues: dict[str, np.ndarray]) -> None:
    """Real ones: sorted, so that equal ones form a visible flat part."""
    for k, (name, values) in enumerate(eigenvalues.items()):
        axes.plot(np.sort(values)[::-1], "ox"[k], color=COLOURS[k], markersize=4, alpha=0.9, label=name)
    axes.axhline(0, color=GREY, linewidth=1)
    lowest = min(float(values.min()) for values in eigenvalues.values())
    axes.set(xlabel="index, largest first", ylabel="eigenvalue", ylim=(min(-0.05, lowest - 0.05), 1.05))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, alpha=0.3)
    _titled(axes, eigenvalues)


def _titled(axes: Any, eigenvalues: dict[str, np.ndarray]) -> None:
    if len(eigenvalues) > 1:
        axes.figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
    axes.set_title(f"eigenvalues of {next(iter(eigenvalues))}" if len(eigenvalues) == 1 else "eigenvalues")


def _agreement(axes: Any, found: TopologyStats) -> None:
    if found.distances is None:
        _note(axes, f"No distance to agreement: {found.unknown['distance to agreement']}.")
        return
    far = np.flatnonzero(found.distances > 0)
    axes.semilogy(far, found.distances[far], "-o", color=BLUE, markersize=3)
    least = float(found.distances[far].min()) if len(far) else 1.0
    end, bottom = found.agreed_after, min(least / 2, 0.1)
    axes.set_ylim(bottom, 1.5 * max(1.0, float(found.distances.max())))
    axes.yaxis.set_minor_formatter("")
    if end is not None and len(far):
        axes.plot([far[-1], end], [least, bottom], "--", color=BLUE, linewidth=1)
        axes.annotate(f"0 after {many(end, 'round')}", (end, bottom), (6, 8), textcoords="offset points", fontsize=8)
    axes.set_xlim(0, found.rounds if end is None else min(found.rounds, max(FEWEST, 2 * end)))
    what = "‖W$_{r-1}$⋯W$_0$ − J‖" if found.changes else "‖W$^r$ − J‖"
    what = what if found.topology.doubly_stochastic else "‖(I − J) W$_{r-1}$⋯W$_0$‖"
    axes.set(xlabel="rounds", ylabel=what)
    axes.set_title("distance to agreement")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, which="major", alpha=0.3)


def _note(axes: Any, words: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, fill(words, 34), ha="center", va="center", transform=axes.transAxes, color="#5b6570")


def _facts(found: TopologyStats) -> list[str]:
    topology = found.topology
    period = "random" if topology.random else f"period {topology.period}" if topology.period != 1 else "static"
    facts = [f"degree {topology.degree:,}", period, f"{messages(found)} messages a round"]
    facts += [f"ρ {near_one(found.rho)}"] if found.rho is not None else []
    return facts + ([f"spectral gap {number(found.gap)}"] if found.gap is not None else [])
