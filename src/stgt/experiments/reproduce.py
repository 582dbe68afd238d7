"""The experiments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from stgt.checks import check_choice
from stgt.experiments.directed import directed
from stgt.experiments.heterogeneity import heterogeneity
from stgt.experiments.outcome import Outcome, Progress
from stgt.experiments.paper_figures import convergence, local_updates
from stgt.experiments.readings import choose_readings
from stgt.experiments.table1 import table1
from stgt.experiments.topology_study import topology
from stgt.problems.datasets import find_libsvm

EXPERIMENTS: dict[str, Callable[..., Outcome]] = {
    "convergence": convergence,
    "local-updates": local_updates,
    "topology": topology,
    "directed": directed,
    "heterogeneity": heterogeneity,
    "table1": table1,
}
DATA = ("a9a", "w8a", "mushrooms")  # what the experiments that take a data_dir need


def reproduce(
    name: str,
    *,
    readings: Iterable[str] | None = None,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Runs one of the paper's experiments.

    Args:
        name: one of `EXPERIMENTS`.
        readings: names of `readings.READINGS`, for the experiments that the paper leaves open; all if left out.
        data_dir: a folder with LIBSVM's files, for `heterogeneity`.
        progress: called with (done, total) from time to time.
    """
    return prepared(name, readings, data_dir)(progress=progress)


def prepared(
    name: str, readings: Iterable[str] | None = None, data_dir: Path | str | None = None
) -> Callable[..., Outcome]:
    """The experiment with its options, checked, still to be called with `progress`."""
    experiment = EXPERIMENTS[check_choice(name, "NAME", EXPERIMENTS)]
    taken = inspect.signature(experiment).parameters
    given: dict[str, Any] = {}
    if readings:
        given["readings"] = [reading.name for reading in choose_readings(readings)]
    if data_dir is not None:
        given["data_dir"] = Path(data_dir)
    for option in given:
        if option not in taken:
            raise ValueError(f"--{option.removesuffix('s').replace('_', '-')} means nothing to {name}: leave it out.")
    if "data_dir" in taken:
        for data in DATA:
            find_libsvm(data, given.get("data_dir"))
    return partial(experiment, **given)
