"""The HTML of a page: an overview of several studies, and the section of each, built by `stgt._internal.markup`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stgt._internal.checks import NotCovered
from stgt._internal.markup import count, element, esc, many, number
from stgt.simulator import Trace
from stgt.study.report.downsample import MOST_CURVES, is_best, stride
from stgt.study.report.study import Network, Study
from stgt.study.report.verdict import Row, headline, prediction, row, warnings
from stgt.topology import Topology
from stgt.topology.html import MOST_LINES, facts, pictures

GRID = (
    "The mean over the seeds and the last tenth of the rounds, with its 95 % interval; the line joins the lowest at "
    "each value, and what is filled is the best. Above are runs that diverged, or ended a thousand times above their "
    "start."
)
OVER = {
    "rounds": "rounds",
    "gradients": "gradients, all nodes",
    "megabytes": "MB sent, all nodes",
    "time": "modelled time",
}
SPEED = {"gradient": ("s a local step", 1.0), "latency": ("s latency a round", 1.0), "bandwidth": ("Mbit/s", 1e6)}
SIZE = 240  # pixels of a picture
MOST_ROUNDS = 48  # of a period
QUICK_UP_TO = 2000  # nodes
DRAWN = 12  # rounds of a schedule without a period


def navigation(studies: Sequence[Study]) -> str:
    """Links to the sections, where there are several."""
    if len(studies) == 1:
        return ""
    links = [("overview", "Overview"), *((f"study-{i}", study.name) for i, study in enumerate(studies))]
    return _classed(
        "nav",
        "sections",
        *(element("a", esc(words), href=f"#{name}") for name, words in links),
        aria_label="Sections",
    )


def overview_html(studies: Sequence[Study], groups: list[list[int]]) -> str:
    """All studies in one table, and the curves of those that are about one problem together."""
    if len(studies) == 1:
        return ""
    head = ["study", "what", "status", "result"]
    rows = [
        [
            element("a", esc(study.name), href=f"#study-{i}"),
            esc(study.kind),
            esc(study.status),
            esc(headline(study)),
        ]
        for i, study in enumerate(studies)
    ]
    charts = [_together([studies[i] for i in group], f"group-{g}") for g, group in enumerate(groups)]
    apart = {one for study in studies for one in study.problems}
    if len(apart) > len(groups):
        words = "Studies of different problems are not drawn together: their errors are not to be compared."
        charts.append(_classed("p", "faint", esc(words)))
    return _classed(
        "section",
        "study",
        _classed("h2", "headline", esc(f"{len(studies)} studies")),
        _card("", _table(head, rows, prose=True)),
        *charts,
        id="overview",
    )


def _together(studies: Sequence[Study], name: str) -> str:
    """The best runs of studies of one problem."""
    metrics = list(dict.fromkeys(metric for study in studies for metric in study.metrics))
    (problem,) = studies[0].problems.values()
    title = f"Best of {', '.join(study.name for study in studies)}"
    return _card(title, _chart(name, metrics, studies[0].network), esc(f"All on one problem: {problem}."))


def study_html(study: Study, i: int, data: dict[str, Any], named: bool) -> str:
    """The section of a study; with its name if `named`, where the page's title is another one."""
    finished = study.status == "finished"
    status = _classed("span", "pill" if finished else "pill attention", esc(study.status))
    parts = [
        _classed("p", "kicker", element("b", esc(study.name)) if named else "", esc(study.kind), status),
        _classed("h2", "headline", esc(headline(study))),
        _classed("p", "faint", esc(_about(study))),
    ]
    if study.metrics:
        parts.append(_card("Curves", _chart(f"curves-{i}", study.metrics, study.network), esc(_drawn(study, data))))
    if data["points"]:
        names = list(dict.fromkeys(name for point in data["points"] for name in point["parameters"]))
        parts.append(_card("Final errors over the grid", _grid(f"grid-{i}", names), esc(GRID)))
    parts.append(_card("Methods", _methods(study), esc(_caption(study))))
    if sum(map(len, study.runs.values())) > len(study.runs):
        parts.append(_all_runs(study))
    parts.append(_card("Warnings of the theory", _warnings(study)))
    if study.topologies:
        parts.append(_card("Communication graphs", _classed("div", "graphs", _graphs(study))))
    parts.append(_spec(study, i))
    return _classed("section", "study", *parts, id=f"study-{i}")


def _warnings(study: Study) -> str:
    """Methods with the same warnings stand together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for method, sentences in warnings(study).items():
        together.setdefault(tuple(sentences), []).append(method)
    entries = [
        element("dt", esc(", ".join(methods))) + "".join(element("dd", esc(one)) for one in sentences)
        for sentences, methods in together.items()
    ]
    return element("dl", *entries)


def _about(study: Study) -> str:
    traces = list(study.best.values())
    seeds, rounds = ({len(one.seeds) for one in traces}, {one.rounds for one in traces})
    amount = [many(max(some), word) if len(some) == 1 else f"{min(some):,} to {max(some):,} {word}s"
              for some, word in ((seeds, "seed"), (rounds, "round"))]  # fmt: skip
    best = f" Best: {study.rule}. {study.choice}".rstrip() if study.rule is not None else ""
    names = list(dict.fromkeys(study.problems.values()))
    return f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}; {', '.join(amount)}.{best}"


def _drawn(study: Study, data: dict[str, Any]) -> str:
    several = any(len(trace.seeds) > 1 for trace in study.best.values())
    words = ["Mean over the seeds with its 95 % interval." if several else "One seed, so that there is no interval."]
    every = max(stride(trace.rounds) for trace in study.best.values())
    if every > 1:
        words.append(f"Of longer runs every {_ordinal(every)} round is drawn, and the last one.")
    runs = sum(map(len, study.runs.values()))
    if study.kind == "sweep" and len(data["curves"]) < runs:
        words.append(f"Of {runs:,} runs, more than {MOST_CURVES}, the best of each method is drawn.")
    if any(trace.diverged.any() for trace in study.best.values()):
        words.append("A curve ends where a seed leaves the finite numbers.")
    missing = [
        f"{name} of {method}" for name in study.metrics for method in study.best if name not in study.best[method]
    ]
    if missing:
        words.append(f"Not measured: {', '.join(missing)}.")
    return " ".join(words)


def _ordinal(value: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th") if value % 100 not in (11, 12, 13) else "th"
    return f"{value:,}{ending}"


def _methods(study: Study) -> str:
    rule = study.judged
    metric = rule.metric if rule is not None else "error"
    predicted = any(not isinstance(one, str) for one in study.advice.values())
    head = ["method", "setting", metric, *_cost_heads(study), *(prediction(None) if predicted else ())]
    rows = []
    for place, method in enumerate(study.ranking):
        found = row(study, method, study.best[method])
        first = place == 0 and study.kind == "compare" and len(study.best) > 1
        name = element("strong", esc(method)) if first else esc(method)
        mark = _classed("span", "swatch", data_style=place) if study.kind != "sweep" else ""
        cells = [esc(one) for one in prediction(study.advice.get(method)).values()] if predicted else []
        rows.append([_named(mark + name, found), esc(found.setting), esc(found.error_in_words), *_costs(found), *cells])
    return _table(head, rows)


def _cost_heads(study: Study) -> list[str]:
    target = study.judged is not None and study.judged.target is not None
    return ["rounds to target" if target else "rounds", "gradients", "MB", "modelled time"]


def _costs(found: Row) -> list[str]:
    share = {f"data_{name}": f"{value:.17g}" for name, value in found.share.items()}
    time = _classed("td", "seconds", esc(f"{number(found.seconds)} s"), **share)
    return [f"{found.rounds:,.0f}", esc(count(round(found.gradients))), esc(number(found.megabytes)), time]


def _named(name: str, found: Row) -> str:
    """The cell of a method, with what is remarkable about the run."""
    return _classed("td", "named", name, _classed("div", "remark", esc(found.remark)) if found.remark else "")


def _caption(study: Study) -> str:
    words = "Gradients and MB are of all nodes together."
    if study.judged is not None:
        mean = "mean over the seeds and the last tenth of the rounds with its 95 % interval"
        words = f"{study.judged.metric}: {mean}. {words}"
    if any(not isinstance(one, str) for one in study.advice.values()):
        words += " Predicted: E‖x̄ − x*‖² in the long run; ≈ marks an estimate."
    return words


def _all_runs(study: Study) -> str:
    rule = study.judged
    head = ["method", "setting", rule.metric if rule is not None else "error", *_cost_heads(study)]
    rows = []
    for method in study.ranking:
        runs: Sequence[Trace] = study.runs[method]
        for run in runs:
            found = row(study, method, run)
            setting = element("strong", esc(found.setting)) if is_best(study, method, run) else esc(found.setting)
            rows.append([_named(esc(method), found), setting, esc(found.error_in_words), *_costs(found)])
    summary = element("summary", esc(f"All {many(len(rows), 'run')}"))
    return _classed("details", "card", summary, _table(head, rows))


def _spec(study: Study, i: int) -> str:
    copy = _classed("button", "copy script", "Copy", type="button", data_from=f"spec-{i}")
    spec = _classed(
        "details", "card", element("summary", "The spec that was run"), copy,
        _classed("div", "scroll", element("pre", element("code", esc(study.spec)), id=f"spec-{i}"), tabindex=0),
        open="open",
    )  # fmt: skip
    about = [element("dt", esc(name)) + element("dd", esc(value)) for name, value in study.facts.items()]
    if not about:
        return spec
    return spec + _classed("details", "card", element("summary", "Facts"), _classed("dl", "facts", *about), open="open")


def _graphs(study: Study) -> str:
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
        shown, rounds = [_classed("p", "faint", esc(f"No picture: {error}."))], 0
    whole = topology.period is not None and rounds in (0, topology.period)
    part = "" if whole or not rounds else f"the first {many(rounds, 'round')} are drawn"
    words = [*facts(topology), *_mixing(topology), part]
    return _classed(
        "figure",
        "graph",
        _classed("div", "rounds", *(_classed("div", "round", one) for one in shown)),
        element(
            "figcaption",
            element("b", esc(topology.name)),
            element("span", esc(" · ".join(word for word in words if word))),
            _classed("span", "faint", esc(f"used by {', '.join(methods)}")),
        ),
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


def _classed(name: str, words: str, /, *inside: str, **attributes: Any) -> str:
    """An element with a class of the style sheet."""
    return element(name, *(inside or ("",)), **{"class": words}, **attributes)


def _card(title: str, *inside: str) -> str:
    """A box with a title; what stands after the first part is small print below it."""
    first, *below = inside
    heading = [element("h3", esc(title))] if title else []
    return _classed("div", "card", *heading, first, *(_classed("p", "faint", words) for words in below if words))


def _chart(name: str, metrics: Sequence[str], network: Network) -> str:
    """The place of the curves, with what chooses them; the script fills it."""
    numbers = {"type": "number", "min": 0, "step": "any"}
    inputs = [
        _labelled(words, element("input", name=key, value=f"{getattr(network, key) / unit:g}", **numbers))
        for key, (words, unit) in SPEED.items()
    ]
    explained = (
        "A round takes tau local steps, one latency if anything is sent in it, and the bits that a node which works "
        "sends in it, on average, over its bandwidth; through a server, the bits of a worker both ways."
    )
    model = _classed(
        "fieldset", "model", element("legend", "Modelled time"), *inputs, _classed("p", "faint", esc(explained))
    )
    return _classed(
        "div",
        "chart script",
        _classed(
            "div",
            "controls",
            _labelled("measure", _select("metric", {one: one for one in metrics})),
            _labelled("over", _select("over", OVER)),
            element("label", element("input", type="checkbox", name="log", checked="checked"), " log scale"),
        ),
        _classed("div", "plot", role="img", aria_label="Curves; the table below has the last values."),
        _classed("div", "legend", role="group", aria_label="Curves to show"),
        model,
        id=name,
    )


def _grid(name: str, parameters: Sequence[str]) -> str:
    """The place of final errors over a hyper-parameter."""
    choice = _labelled("over", _select("parameter", {one: one for one in parameters}))
    return _classed(
        "div",
        "grid script",
        _classed("div", "controls", choice) if len(parameters) > 1 else _hidden("parameter", parameters[0]),
        _classed("div", "plot", role="img", aria_label="Final errors; the table of all runs below has them."),
        id=name,
    )


def _hidden(name: str, value: str) -> str:
    return element("input", type="hidden", name=name, value=value)


def _labelled(words: str, inside: str) -> str:
    return element("label", element("span", esc(words)), inside)


def _select(name: str, options: dict[str, str]) -> str:
    return element("select", *(element("option", esc(words), value=one) for one, words in options.items()), name=name)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], prose: bool = False) -> str:
    """A table in a box of its own that scrolls; cells are markup."""
    top = element("thead", element("tr", *(element("th", esc(one), scope="col") for one in head)))
    body = element("tbody", *(element("tr", *map(_cell, row)) for row in rows))
    kind = "prose" if prose else "numbers"
    return _classed("div", "scroll", _classed("table", kind, top, body), tabindex=0, role="region", aria_label="Table")


def _cell(inside: str) -> str:
    """A cell; one that has a class of its own is left as it is."""
    return inside if inside.startswith("<td ") else element("td", inside)
