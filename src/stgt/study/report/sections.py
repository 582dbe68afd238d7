"""The sections of a page: an overview of several studies, and what is said and drawn of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stgt._internal.markup import count, element, many, number, said
from stgt.simulator import Trace
from stgt.study.report.downsample import MOST_CURVES, is_best, stride
from stgt.study.report.graphs import graphs_html
from stgt.study.report.html import card, chart, grid, of_class, table
from stgt.study.report.study import Study
from stgt.study.report.verdict import Row, headline, prediction, row, warnings

GRID = (
    "The mean over the seeds and the last tenth of the rounds, with its 95 % interval; the line joins the lowest at "
    "each value, and what is filled is the best. Above are runs that diverged, or ended a thousand times above their "
    "start."
)


def navigation(studies: Sequence[Study]) -> str:
    """Links to the sections, where there are several."""
    if len(studies) == 1:
        return ""
    links = [("overview", "Overview"), *((f"study-{i}", study.name) for i, study in enumerate(studies))]
    return of_class(
        "nav", "sections", *(element("a", said(words), href=f"#{name}") for name, words in links), aria_label="Sections"
    )


def overview_html(studies: Sequence[Study], groups: list[list[int]]) -> str:
    """All studies in one table, and the curves of those that are about one problem together."""
    if len(studies) == 1:
        return ""
    head = ["study", "what", "status", "result"]
    rows = [
        [
            element("a", said(study.name), href=f"#study-{i}"),
            said(study.kind),
            said(study.status),
            said(headline(study)),
        ]
        for i, study in enumerate(studies)
    ]
    charts = [_together([studies[i] for i in group], f"group-{g}") for g, group in enumerate(groups)]
    apart = {one for study in studies for one in study.problems}
    if len(apart) > len(groups):
        words = "Studies of different problems are not drawn together: their errors are not to be compared."
        charts.append(of_class("p", "faint", said(words)))
    return of_class(
        "section",
        "study",
        of_class("h2", "headline", said(f"{len(studies)} studies")),
        card("", table(head, rows, prose=True)),
        *charts,
        id="overview",
    )


def _together(studies: Sequence[Study], name: str) -> str:
    """The best runs of studies of one problem."""
    metrics = list(dict.fromkeys(metric for study in studies for metric in study.metrics))
    (problem,) = studies[0].problems.values()
    title = f"Best of {', '.join(study.name for study in studies)}"
    return card(title, chart(name, metrics, studies[0].network), said(f"All on one problem: {problem}."))


def study_html(study: Study, i: int, data: dict[str, Any], named: bool) -> str:
    """The section of a study; `named` says how it is called, where the page's title does not."""
    finished = study.status == "finished"
    status = of_class("span", "pill" if finished else "pill attention", said(study.status))
    parts = [
        of_class("p", "kicker", element("b", said(study.name)) if named else "", said(study.kind), status),
        of_class("h2", "headline", said(headline(study))),
        of_class("p", "faint", said(_about(study))),
    ]
    if study.metrics:
        parts.append(card("Curves", chart(f"curves-{i}", study.metrics, study.network), said(_drawn(study, data))))
    if data["points"]:
        names = list(dict.fromkeys(name for point in data["points"] for name in point["parameters"]))
        parts.append(card("What the grid says", grid(f"grid-{i}", names), said(GRID)))
    parts.append(card("Methods", _methods(study), said(_caption(study))))
    if sum(map(len, study.runs.values())) > len(study.runs):
        parts.append(_all_runs(study))
    parts.append(card("What the theory warns of", _warnings(study)))
    if study.topologies:
        parts.append(card("Who talks to whom", of_class("div", "graphs", graphs_html(study))))
    parts.append(_spec(study, i))
    return of_class("section", "study", *parts, id=f"study-{i}")


def _warnings(study: Study) -> str:
    """Methods of which the same is said stand together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for method, sentences in warnings(study).items():
        together.setdefault(tuple(sentences), []).append(method)
    said_of = [
        element("dt", said(", ".join(methods))) + "".join(element("dd", said(one)) for one in sentences)
        for sentences, methods in together.items()
    ]
    return element("dl", *said_of)


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
        name = element("strong", said(method)) if first else said(method)
        mark = of_class("span", "swatch", data_style=place) if study.kind != "sweep" else ""
        cells = [said(one) for one in prediction(study.advice.get(method)).values()] if predicted else []
        rows.append(
            [_named(mark + name, found), said(found.setting), said(found.error_in_words), *_costs(found), *cells]
        )
    return table(head, rows)


def _cost_heads(study: Study) -> list[str]:
    target = study.judged is not None and study.judged.target is not None
    return ["rounds to target" if target else "rounds", "gradients", "MB", "modelled time"]


def _costs(found: Row) -> list[str]:
    share = {f"data_{name}": f"{value:.17g}" for name, value in found.share.items()}
    time = of_class("td", "seconds", said(f"{number(found.seconds)} s"), **share)
    return [f"{found.rounds:,.0f}", said(count(round(found.gradients))), said(number(found.megabytes)), time]


def _named(name: str, found: Row) -> str:
    """The cell of a method, with what is remarkable about the run."""
    return of_class("td", "named", name, of_class("div", "remark", said(found.remark)) if found.remark else "")


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
            setting = element("strong", said(found.setting)) if is_best(study, method, run) else said(found.setting)
            rows.append([_named(said(method), found), setting, said(found.error_in_words), *_costs(found)])
    summary = element("summary", said(f"All {many(len(rows), 'run')}"))
    return of_class("details", "card", summary, table(head, rows))


def _spec(study: Study, i: int) -> str:
    copy = of_class("button", "copy script", "Copy", type="button", data_from=f"spec-{i}")
    spec = of_class(
        "details", "card", element("summary", "The spec that was run"), copy,
        of_class("div", "scroll", element("pre", element("code", said(study.spec)), id=f"spec-{i}"), tabindex=0),
        open="open",
    )  # fmt: skip
    facts = [element("dt", said(name)) + element("dd", said(value)) for name, value in study.facts.items()]
    if not facts:
        return spec
    return spec + of_class("details", "card", element("summary", "Facts"), of_class("dl", "facts", *facts), open="open")
