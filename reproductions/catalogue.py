"""The experiments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from reproductions.churn import churn
from reproductions.directed import directed
from reproductions.frontier import frontier
from reproductions.heterogeneity import DATA as HETEROGENEITY_DATA
from reproductions.heterogeneity import heterogeneity
from reproductions.images import load_images
from reproductions.options import check_choice
from reproductions.outcome import Outcome
from reproductions.paper_figures import convergence, local_updates
from reproductions.readings import choose_readings
from reproductions.relaxed import DATA as RELAXED_DATA
from reproductions.relaxed import relaxed
from reproductions.table1 import table1
from reproductions.topology_study import topology
from stgt import InputError
from stgt.problems import find_libsvm

# Experiments that train networks need PyTorch, so they are loaded only to run: by module, function and first argument.
EXPERIMENTS: dict[str, Callable[..., Outcome] | tuple[str, ...]] = {
    "convergence": convergence,
    "local-updates": local_updates,
    "topology": topology,
    "frontier": frontier,
    "directed": directed,
    "heterogeneity": heterogeneity,
    "relaxed": relaxed,
    "churn": churn,
    "table1": table1,
    "cifar10": ("cifar10", "cifar10"),
    "mnist": ("mnist", "mnist"),
    "federated": ("federated", "federated"),
    "elastic-mnist": ("elastic_mnist", "elastic_mnist"),
    "relaxed-mnist": ("relaxed_training", "run_study", "MNIST"),
    "relaxed-cifar10": ("relaxed_training", "run_study", "CIFAR10"),
}

# The data sets of LIBSVM that an experiment needs.
NEEDS = {"heterogeneity": HETEROGENEITY_DATA, "relaxed": (RELAXED_DATA,)}


def prepared(
    name: str, readings: Iterable[str] | None = None, data_dir: Path | str | None = None, **options: Any
) -> Callable[..., Outcome]:
    """The experiment with its checked options, as a function of `progress`.

    Args:
        name: one of `EXPERIMENTS`.
        readings: names of `readings.READINGS`, for the experiments that have readings; all by default.
        data_dir: a folder with LIBSVM's files for `heterogeneity` and `relaxed`, CIFAR-10's for `cifar10`, MNIST's
            for the other trainings.
        options: other options of the experiment, such as `scale` of `cifar10`; None is the default.
    """
    experiment = _loaded(check_choice(name, "name", EXPERIMENTS))
    taken = inspect.signature(experiment).parameters
    given = {option: value for option, value in options.items() if value is not None}
    if readings:
        given["readings"] = [reading.name for reading in choose_readings(readings)]
    if data_dir is not None:
        given["data_dir"] = Path(data_dir)
    for option in given:
        if option not in taken:
            raise InputError(option, hint=f" is not an option of {name}: leave it out.")
    if "scale" in given:
        check_choice(given["scale"], "scale", _scales(name))
    for data in NEEDS.get(name, ()):
        find_libsvm(data, given.get("data_dir"))
    if "scale" in taken:
        load_images("cifar10" if name.endswith("cifar10") else "mnist", given.get("data_dir"))
    return partial(experiment, **given)


def works_in(name: str, folder: Path) -> dict[str, Path]:
    """The folder as an argument, for experiments that can continue after an interruption."""
    return {"folder": folder} if "folder" in inspect.signature(_loaded(name)).parameters else {}


def _loaded(name: str) -> Callable[..., Outcome]:
    found = EXPERIMENTS[name]
    if callable(found):
        return found
    module, function, *arguments = found
    loaded = import_module(f"reproductions.{module}")
    return partial(getattr(loaded, function), *(getattr(loaded, argument) for argument in arguments))


def _scales(name: str) -> Iterable[str]:
    """The sizes of an experiment that trains networks."""
    found = EXPERIMENTS[name]
    assert isinstance(found, tuple)
    module, _, *study = found
    loaded = import_module(f"reproductions.{module}")
    return getattr(loaded, study[0]).scales if study else loaded.SCALES
