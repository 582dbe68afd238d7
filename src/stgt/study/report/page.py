"""Studies as one HTML page that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.checks import InputError, NotCovered, check_choice
from stgt._internal.files import write_text
from stgt._internal.markup import many, number, render
from stgt.simulator import Trace
from stgt.simulator.metrics import is_error
from stgt.study.report.downsample import MOST_CURVES, curves, itemsize, points, share, stride
from stgt.study.report.figures import meaning
from stgt.study.report.study import Study
from stgt.topology import Topology
from stgt.topology.html import MOST_LINES, facts, pictures

if TYPE_CHECKING:
    from stgt.theory import Advice

KINDS = ("run", "sweep", "compare")
SCRIPTS = ("common.js", "curves.js", "grid.js", "page.js")
PREDICTED = ("predicted", "stable (radius)", "largest safe gamma")
SIZE = 240  # pixels, the width of a picture of a graph
MOST_ROUNDS = 48  # the most rounds of a period that are drawn
QUICK_UP_TO = 2000  # nodes; for more, ρ and the spectral gap take too long
DRAWN = 12  # rounds that are drawn of a schedule without a period


def write_page(studies: Iterable[Study], path: Path | str, title: str = "") -> Path:
    """Writes one HTML file with curves, tables, graphs, specs and warnings of each study, and an overview of several.

    The page makes no request: scripts, styles and numbers are in the file, and its policy forbids any other source.
    The name of a study is shown as plain text.

    Args:
        studies: one section each, in this order; `Study(found)` makes one from the result of `stgt.compare`.
        path: the file to write.
        title: the title of the page; by default the studies' names.

    Returns:
        The path.
    """
    shown = list(studies)
    if not shown:
        raise InputError("studies", hint=" is empty: give at least one.")
    for study in shown:
        check_choice(study.kind, "kind", KINDS)
    text = page(shown, title).encode("utf-8", "replace").decode()  # half a character becomes "?"
    return write_text(Path(path).expanduser(), text)


def page(studies: Sequence[Study], title: str = "") -> str:
    """The text of the file."""
    from plotly.offline import get_plotlyjs

    data = [_data(study) for study in studies]
    groups = _groups(studies)
    inside = "\n".join(_asset(name) for name in SCRIPTS)
    scripts = [get_plotlyjs(), f'"use strict";\n(() => {{\n{inside}}})();\n']  # a function: no global names
    return render(
        "study/report/page.html.j2",
        title=title or ", ".join(study.name for study in studies),
        named=bool(title) or len(studies) > 1,
        policy=_policy(scripts),
        style=_asset("page.css"),
        studies=[_section(study, drawn) for study, drawn in zip(studies, data, strict=True)],
        groups=[_group([studies[i] for i in group]) for group in groups],
        apart=len({one for study in studies for one in study.comparison.problems}) > len(groups),
        data=_json({"studies": data, "groups": groups}),
        scripts=scripts,
    )


def _data(study: Study) -> dict[str, Any]:
    """The data that the page draws."""
    found = study.comparison
    traces = list(found.best.values())
    return {
        "name": study.name,
        "metrics": [
            {"name": name, "meaning": meaning(name, [one for one in traces if name in one]), "error": is_error(name)}
            for name in found.metrics
        ],
        "curves": curves(study),
        "points": points(found),
        "network": vars(study.network),
    }


def _groups(studies: Sequence[Study]) -> list[list[int]]:
    """Groups of two or more studies with the same problem, by their numbers."""
    found: dict[str, list[int]] = {}
    for i, study in enumerate(studies):
        if len(study.comparison.problems) == 1:
            found.setdefault(next(iter(study.comparison.problems)), []).append(i)
    return [group for group in found.values() if len(group) > 1]


def _group(studies: Sequence[Study]) -> dict[str, Any]:
    """The best runs of studies of one problem."""
    return {
        "names": ", ".join(study.name for study in studies),
        "problem": next(iter(studies[0].comparison.problems.values())),
        "metrics": list(dict.fromkeys(metric for study in studies for metric in study.comparison.metrics)),
        "network": studies[0].network,
    }


def _section(study: Study, data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the template for a study."""
    found = study.comparison
    best = [(method, found.best[method]) for method in found.order]
    runs = [(method, run) for method in found.order for run in found.runs[method]]
    predicted = any(not isinstance(one, str) for one in study.advice.values())
    head, rows = _table(study, best)
    if predicted:
        head += PREDICTED
        for row in rows:
            row["predicted"] = _prediction(study.advice.get(row["method"]))
    for place, row in enumerate(rows):
        row["style"] = place if study.kind != "sweep" else None
        row["first"] = place == 0 and study.kind == "compare" and len(best) > 1
    problems = list(dict.fromkeys(found.problems.values()))
    about = f"{', '.join(problems[:4])}{' …' if len(problems) > 4 else ''}; {_amounts([one for _, one in best])}."
    caption = " Predicted: E‖x̄ − x*‖² at the steady state; ≈ marks an estimate." if predicted else ""
    return {
        "study": study,
        "metrics": found.metrics,
        "verdict": found.verdict,
        "about": about,
        "drawn": " ".join(_drawn(study, data)),
        "parameters": list(dict.fromkeys(name for point in data["points"] for name in point["parameters"])),
        "methods": (head, rows),
        "caption": f"{found.caption} MB are summed over all nodes.{caption}",
        "runs": _table(study, runs) if len(runs) > len(best) else None,
        "warnings": _warnings(study),
        "graphs": _graphs(study),
    }


def _amounts(traces: list[Trace]) -> str:
    """ "5 seeds, 300 rounds"."""
    amounts = [({len(one.seeds) for one in traces}, "seed"), ({one.rounds for one in traces}, "round")]
    return ", ".join(
        many(max(some), word) if len(some) == 1 else f"{min(some):,} to {max(some):,} {word}s" for some, word in amounts
    )


def _drawn(study: Study, data: Mapping[str, Any]) -> Iterator[str]:
    """The sentences below the curves."""
    found, best = study.comparison, study.comparison.best
    several = any(len(trace.seeds) > 1 for trace in best.values())
    yield "Mean over the seeds with its 95 % interval." if several else "One seed, so there is no interval."
    every = max(stride(trace.rounds) for trace in best.values())
    if every > 1:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(every % 10, "th") if every % 100 not in (11, 12, 13) else "th"
        yield f"Long runs are drawn at every {every:,}{ending} round and at the last one."
    runs = sum(map(len, found.runs.values()))
    if study.kind == "sweep" and len(data["curves"]) < runs:
        yield f"There are {runs:,} runs, more than {MOST_CURVES}, so only the best of each method is drawn."
    if any(trace.diverged.any() for trace in best.values()):
        yield "A curve ends where a seed diverges."
    missing = [f"{name} of {method}" for name in found.metrics for method in best if name not in best[method]]
    if missing:
        yield f"Not measured: {', '.join(missing)}."


def _table(study: Study, runs: Sequence[tuple[str, Trace]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The rows of the comparison's table for these runs, with MB for floats, the modelled time, and all remarks."""
    found, rows = study.comparison, list[dict[str, Any]]()
    head, *lines = found.cells([found.row(method, trace) for method, trace in runs])
    place = head.index("floats") - 2
    for (method, trace), (_, setting, *cells, remark) in zip(runs, lines, strict=True):
        at = found.rule.counted_to(trace)
        parts = share(trace, at)
        network, megabytes = study.network, float(trace["floats"][:, at].mean()) * itemsize(trace) / 1e6
        busy = parts["steps"] * network.gradient + parts["communications"] * network.latency
        notes = [note.rstrip(".") for note in trace.notes if not note.startswith(f"{method} at its best")]
        rows.append(
            {
                "method": method,
                "setting": setting,
                "chosen": found.is_chosen(method, trace),
                "remark": "; ".join(dict.fromkeys([*filter(None, [remark]), *notes])),
                "cells": [*cells[:place], number(megabytes), *cells[place + 1 :]],
                "time": f"{number(busy + parts['bits'] / network.bandwidth)} s",
                "share": {name: f"{value:.17g}" for name, value in parts.items()},
                "predicted": (),
            }
        )
    return ["MB" if name == "floats" else name for name in head[:-1]] + ["modelled time"], rows


def _prediction(advice: Advice | str | None) -> list[str]:
    """The theory's prediction for a run, as cells of the table; "–" if there is none."""
    if advice is None or isinstance(advice, str):
        return ["–"] * len(PREDICTED)
    estimate = "" if advice.basis == "exact" else "≈ "
    error, gamma = (
        "–" if value is None or math.isnan(value) else f"{estimate}{number(value)}"
        for value in (advice.error, advice.largest_gamma)
    )
    answer = {True: "yes", False: "no", None: "unknown"}[advice.stable]
    return [error, answer if advice.radius is None else f"{answer} ({advice.radius:.4g})", gamma]


def _warnings(study: Study) -> list[tuple[str, tuple[str, ...]]]:
    """The warnings of the theory, or the reason for no prediction, grouped by methods with the same warnings."""
    together: dict[tuple[str, ...], list[str]] = {}
    for method in study.comparison.order:
        advice = study.advice.get(method, "no prediction was requested")
        if isinstance(advice, str):
            sentences = [f"No prediction: {advice.rstrip('.')}."]
        else:
            basis = "" if advice.basis == "exact" else f" This is {advice.basis}."
            sentences = [f"{sentence}{basis}" for sentence in advice.warnings] or [f"No warning.{basis}"]
        together.setdefault(tuple(sentences), []).append(method)
    return [(", ".join(methods), sentences) for sentences, methods in together.items()]


def _graphs(study: Study) -> list[dict[str, Any]]:
    """Each topology once, with the methods that ran on it."""
    found: dict[str, tuple[Topology, list[str]]] = {}
    for method, topology in study.topologies.items():
        found.setdefault(topology.fingerprint, (topology, []))[1].append(method)
    return [_graph(topology, methods) for topology, methods in found.values()]


def _graph(topology: Topology, methods: list[str]) -> dict[str, Any]:
    lines = max(1, topology.n * topology.degree // (2 if topology.symmetric else 1))
    rounds = max(1, min(topology.period or DRAWN, MOST_ROUNDS, MOST_LINES // lines))
    shown, unknown, part = list[dict[str, Any]](), "", ""
    try:
        shown = pictures(topology, range(rounds), SIZE)
        part = "" if rounds == topology.period else f"the first {many(rounds, 'round')} are drawn"
    except Exception as error:  # too many nodes or links, or a user's function fails
        unknown = f"No picture: {error}."
    words = " · ".join(filter(None, [*facts(topology), *_mixing(topology), part]))
    return {"name": topology.name, "pictures": shown, "unknown": unknown, "words": words, "methods": ", ".join(methods)}


def _mixing(topology: Topology) -> Iterator[str]:
    """ρ and the spectral gap, as far as they are known and quick to compute."""
    from stgt.theory import rho, spectral_gap  # the import takes a third of a second

    for name, of in (("ρ", rho), ("spectral gap", spectral_gap)) if topology.n <= QUICK_UP_TO else ():
        try:
            yield f"{name} {number(float(of(topology)))}"
        except NotCovered:  # it never repeats, or is too large
            continue


def _asset(name: str) -> str:
    return (files("stgt.study.report") / "assets" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element or begin a comment."""
    words = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return words.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Iterable[str]) -> str:
    """The policy: nothing is loaded from anywhere, and only these scripts run."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    images, styles = "img-src data: blob:", "style-src 'unsafe-inline'"
    return f"default-src 'none'; script-src {hashes}; {styles}; {images}; base-uri 'none'; form-action 'none'"
