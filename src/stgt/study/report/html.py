"""Pieces of a page: boxes, tables, and the places that its script draws in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stgt._internal.markup import element, said
from stgt.study.report.study import Network

OVER = {
    "rounds": "rounds",
    "gradients": "gradients, all nodes",
    "megabytes": "MB sent, all nodes",
    "time": "modelled time",
}
SPEED = {"gradient": ("s a local step", 1.0), "latency": ("s latency a round", 1.0), "bandwidth": ("Mbit/s", 1e6)}


def of_class(name: str, words: str, /, *inside: str, **attributes: Any) -> str:
    """An element of a class of the style sheet."""
    return element(name, *(inside or ("",)), **{"class": words}, **attributes)


def card(title: str, *inside: str) -> str:
    """A box with a title; what stands after the first part is said below it."""
    first, *below = inside
    heading = [element("h3", said(title))] if title else []
    return of_class("div", "card", *heading, first, *(of_class("p", "faint", words) for words in below if words))


def chart(name: str, metrics: Sequence[str], network: Network) -> str:
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
    model = of_class(
        "fieldset", "model", element("legend", "Modelled time"), *inputs, of_class("p", "faint", said(explained))
    )
    return of_class(
        "div",
        "chart script",
        of_class(
            "div",
            "controls",
            _labelled("measure", _select("metric", {one: one for one in metrics})),
            _labelled("over", _select("over", OVER)),
            element("label", element("input", type="checkbox", name="log", checked="checked"), " log scale"),
        ),
        of_class("div", "plot", role="img", aria_label="Curves; the table below has the last values."),
        of_class("div", "legend", role="group", aria_label="Curves to show"),
        model,
        id=name,
    )


def grid(name: str, parameters: Sequence[str]) -> str:
    """The place of final errors over a hyper-parameter."""
    choice = _labelled("over", _select("parameter", {one: one for one in parameters}))
    return of_class(
        "div",
        "grid script",
        of_class("div", "controls", choice) if len(parameters) > 1 else _hidden("parameter", parameters[0]),
        of_class("div", "plot", role="img", aria_label="Final errors; the table of all runs below has them."),
        id=name,
    )


def _hidden(name: str, value: str) -> str:
    return element("input", type="hidden", name=name, value=value)


def _labelled(words: str, inside: str) -> str:
    return element("label", element("span", said(words)), inside)


def _select(name: str, options: dict[str, str]) -> str:
    return element("select", *(element("option", said(words), value=one) for one, words in options.items()), name=name)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], prose: bool = False) -> str:
    """A table in a box of its own that scrolls; cells are markup."""
    top = element("thead", element("tr", *(element("th", said(one), scope="col") for one in head)))
    body = element("tbody", *(element("tr", *map(_cell, row)) for row in rows))
    kind = "prose" if prose else "numbers"
    return of_class("div", "scroll", of_class("table", kind, top, body), tabindex=0, role="region", aria_label="Table")


def _cell(inside: str) -> str:
    """A cell; one that has a class of its own is left as it is."""
    return inside if inside.startswith("<td ") else element("td", inside)
