"""Studies as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from stgt._internal.checks import InputError, check_choice
from stgt._internal.files import write_text
from stgt._internal.markup import esc
from stgt.simulator.metrics import is_error
from stgt.study.report.downsample import curves, is_best, points
from stgt.study.report.figures import meaning
from stgt.study.report.html import navigation, overview_html, study_html
from stgt.study.report.study import Study

KINDS = ("run", "sweep", "compare")
SCRIPTS = ("common.js", "curves.js", "grid.js", "page.js")


def write_page(studies: Iterable[Study], path: Path | str, title: str = "") -> Path:
    """Writes one HTML file with curves, tables, graphs, specs and warnings of each study, and an overview of several.

    It makes no request: scripts, styles and numbers are inside, and its policy forbids any other. Whatever a study is
    called is shown as it is.

    Args:
        studies: a section each, in this order.
        path: of the file.
        title: of the page; the studies' names if left out.

    Returns:
        The path.
    """
    shown = list(studies)
    if not shown:
        raise InputError("studies", hint=" is empty: give at least one.")
    for study in shown:
        check_choice(study.kind, "kind", KINDS)
        if not study.best or set(study.best) != set(study.runs):
            raise ValueError(f"study {study.name}: best and runs must have the same methods, and at least one.")
        for method, traces in study.runs.items():
            if not any(is_best(study, method, trace) for trace in traces):
                raise ValueError(f"study {study.name}: the best of {method} must be one of its runs.")
    text = page(shown, title).encode("utf-8", "replace").decode()  # half a character, as from a file's name, is a "?"
    return write_text(Path(path).expanduser(), text)


def page(studies: Sequence[Study], title: str = "") -> str:
    """The text of the file."""
    from plotly.offline import get_plotlyjs

    data = [_data(study) for study in studies]
    named = bool(title) or len(studies) > 1
    groups = _groups(studies)
    plotly, script = get_plotlyjs(), _script()
    parts = {
        "policy": _policy(plotly, script),
        "title": esc(title or ", ".join(study.name for study in studies)),
        "style": _asset("page.css"),
        "navigation": navigation(studies),
        "sections": overview_html(studies, groups)
        + "".join(study_html(study, i, data[i], named) for i, study in enumerate(studies)),
        "footer": esc("Written by stgt. The page is whole: it needs no network and no other file."),
        "data": _json({"studies": data, "groups": groups}),
        "plotly": plotly,
        "script": script,
    }
    # In one pass, so that a mark within what is filled in stays what it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def _data(study: Study) -> dict[str, Any]:
    """What the page draws."""
    traces = list(study.best.values())
    return {
        "name": study.name,
        "metrics": [
            {"name": name, "meaning": meaning(name, [one for one in traces if name in one]), "error": is_error(name)}
            for name in study.metrics
        ],
        "curves": curves(study),
        "points": points(study),
        "network": vars(study.network),
    }


def _groups(studies: Sequence[Study]) -> list[list[int]]:
    """The numbers of studies that are about one and the same problem, two or more."""
    found: dict[str, list[int]] = {}
    for i, study in enumerate(studies):
        if len(study.problems) == 1:
            found.setdefault(next(iter(study.problems)), []).append(i)
    return [group for group in found.values() if len(group) > 1]


def _script() -> str:
    """The page's own scripts, whose names are not global."""
    inside = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{inside}}})();\n'


def _asset(name: str) -> str:
    return (files("stgt.study.report") / "assets" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    words = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return words.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    """Nothing is loaded from anywhere, and no script runs but these."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    images, styles = "img-src data: blob:", "style-src 'unsafe-inline'"
    return f"default-src 'none'; script-src {hashes}; {styles}; {images}; base-uri 'none'; form-action 'none'"
