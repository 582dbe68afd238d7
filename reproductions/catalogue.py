"""The experiments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from reproductions.cifar10 import SCALES as CIFAR10_SCALES
from reproductions.cifar10 import cifar10
from reproductions.directed import directed
from reproductions.federated import SCALES as FEDERATED_SCALES
from reproductions.federated import federated
from reproductions.frontier import frontier
from reproductions.heterogeneity import DATA as HETEROGENEITY_DATA
from reproductions.heterogeneity import heterogeneity
from reproductions.images import load_images
from reproductions.mnist import SCALES as MNIST_SCALES
from reproductions.mnist import mnist
from reproductions.outcome import Outcome
from reproductions.paper_figures import convergence, local_updates
from reproductions.readings import choose_readings
from reproductions.relaxed import DATA as RELAXED_DATA
from reproductions.relaxed import relaxed
from reproductions.relaxed_training import CIFAR10 as RELAXED_CIFAR10
from reproductions.relaxed_training import MNIST as RELAXED_MNIST
from reproductions.relaxed_training import run_study
from reproductions.table1 import table1
from reproductions.topology_study import topology
from stgt._internal.checks import check_choice
from stgt._internal.progress import Progress
from stgt.problems.datasets import find_libsvm

EXPERIMENTS: dict[str, Callable[..., Outcome]] = {
    "convergence": convergence,
    "local-updates": local_updates,
    "topology": topology,
    "frontier": frontier,
    "directed": directed,
    "heterogeneity": heterogeneity,
    "relaxed": relaxed,
    "table1": table1,
    "cifar10": cifar10,
    "mnist": mnist,
    "federated": federated,
    RELAXED_MNIST.name: partial(run_study, RELAXED_MNIST),
    RELAXED_CIFAR10.name: partial(run_study, RELAXED_CIFAR10),
}

# LIBSVM's data sets that an experiment needs.
NEEDS = {"heterogeneity": HETEROGENEITY_DATA, "relaxed": (RELAXED_DATA,)}

# The experiments that train on images, and their sizes.
SCALES = {
    "cifar10": CIFAR10_SCALES,
    "mnist": MNIST_SCALES,
    "federated": FEDERATED_SCALES,
    RELAXED_MNIST.name: RELAXED_MNIST.scales,
    RELAXED_CIFAR10.name: RELAXED_CIFAR10.scales,
}


def reproduce(
    name: str,
    *,
    readings: Iterable[str] | None = None,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Outcome:
    """Runs one of the paper's experiments.

    Args:
        name: one of `EXPERIMENTS`.
        readings: names of `readings.READINGS`, for the experiments that the paper leaves open; all if left out.
        data_dir: a folder with LIBSVM's files for `heterogeneity` and `relaxed`, CIFAR-10's for `cifar10`, MNIST's
            for the other trainings.
        progress: called with (done, total) from time to time.
        options: others of the experiment's own, such as `scale` of `cifar10`.
    """
    return prepared(name, readings, data_dir, **options)(progress=progress)


def prepared(
    name: str, readings: Iterable[str] | None = None, data_dir: Path | str | None = None, **options: Any
) -> Callable[..., Outcome]:
    """The experiment with its options, checked, still to be called with `progress`; None stands for the default."""
    experiment = EXPERIMENTS[check_choice(name, "name", EXPERIMENTS)]
    taken = inspect.signature(experiment).parameters
    given = {option: value for option, value in options.items() if value is not None}
    if readings:
        given["readings"] = [reading.name for reading in choose_readings(readings)]
    if data_dir is not None:
        given["data_dir"] = Path(data_dir)
    for option in given:
        if option not in taken:
            raise ValueError(f"{option} means nothing to {name}: leave it out.")
    if "scale" in given:
        check_choice(given["scale"], "scale", SCALES[name])
    for data in NEEDS.get(name, ()):
        find_libsvm(data, given.get("data_dir"))
    if name in SCALES:
        load_images("cifar10" if name.endswith("cifar10") else "mnist", given.get("data_dir"))
    return partial(experiment, **given)


def works_in(name: str, folder: Path) -> dict[str, Path]:
    """The folder as an argument, for the experiments that can go on where they were broken off."""
    return {"folder": folder} if "folder" in inspect.signature(EXPERIMENTS[name]).parameters else {}
