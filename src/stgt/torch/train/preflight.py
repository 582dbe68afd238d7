"""Checks before a training starts: can its runs be trained, and have similar runs failed?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stgt._internal.checks import InputError, first_line
from stgt.algorithms import Wrapper
from stgt.simulator.instance import check_runs
from stgt.study.spec.training import LabelledData, Training, TrainingSpec
from stgt.torch import validate
from stgt.torch.train.data import check_augment
from stgt.torch.train.node_training import build_model, build_optimizer


def check_ready(runs: TrainingSpec, nodes: int, data: Mapping[str, LabelledData]) -> None:
    """Raises a ValueError if a run cannot be trained with its graph, method, model, optimiser and data.

    Args:
        runs: the spec.
        nodes: how many processes will train it.
        data: its data sets, by name.
    """
    for run in runs.runs:
        try:
            _check(run, nodes, data[run.data.name])
        except (ValueError, RuntimeError) as error:  # torch's own errors are RuntimeErrors
            words = first_line(error) if isinstance(error, RuntimeError) else str(error)
            whose = f"run {run.name!r}: " if len(runs.runs) > 1 else ""
            raise ValueError(f"{whose}{words}") from None


def _check(run: Training, nodes: int, data: LabelledData) -> None:
    topology = validate.topology_of(run.build_topology(nodes), nodes)
    algorithm = run.build_algorithm()
    check_runs(algorithm, topology, "trainer")
    run.data.parts(data.y_train, nodes)
    check_augment(data, run.data.augment)
    if len(data.y_test) < nodes:
        hint = f" has {len(data.y_test)} samples to test {nodes} nodes: give more."
        raise InputError("data.name", run.data.name, hint)
    optimizer = build_optimizer(run, build_model(run.model, data))
    validate.check_optimizer(optimizer)
    validate.check_divided(algorithm, optimizer)
    validate.check_sending(algorithm, topology, optimizer, run.message_dtype, run.early)


class Seen(NamedTuple):
    """The lr · tau from which ST-GT with SGD failed on MNIST: eight nodes, exponential graph, batch 32, tau 5 or 10."""

    reach: float
    words: str


# By model and partition; docs/training.md has the table. No run failed with tau = 1 up to lr = 0.4, nor with resnet18,
# whose BatchNorm tolerated lr · tau = 10 on CIFAR-10.
SEEN = {
    ("lenet", "two classes a node"): Seen(0.1, "1 of 14 runs at 0.1, 4 of 7 at 0.15, all at 0.4"),
    ("lenet", "iid data"): Seen(0.3, "1 of 2 runs at 0.3, both at 0.5 and more"),
    ("mlp", "two classes a node"): Seen(1.6, "all of 3 runs at 1.6"),
}


def cautions(runs: TrainingSpec) -> list[str]:
    """A warning for each run without a relaxed tracker whose lr · tau is as large as that of runs that failed."""
    return [sentence for run in runs.runs if (sentence := _caution(run))]


def _caution(run: Training) -> str:
    algorithm, lr = run.build_algorithm(), run.optimizer.arguments.get("lr")
    data = "iid data" if run.data.partition == "iid" else "two classes a node"
    seen = SEEN.get((run.model.name, data)) if run.data.name == "mnist" else None
    if seen is None or run.optimizer.name != "SGD" or not isinstance(lr, int | float):
        return ""
    inside = algorithm.inner if isinstance(algorithm, Wrapper) else algorithm
    relaxed = getattr(inside, "beta", 1.0) < 1.0
    if not algorithm.spec().tracks or relaxed or algorithm.tau == 1 or lr * algorithm.tau < seen.reach * (1 - 1e-9):
        return ""
    return (
        f"{run.name}: lr · tau = {lr * algorithm.tau:g}; on MNIST with {data} ST-GT diverged or stopped learning with "
        f"{run.model.name} from lr · tau = {seen.reach:g} on ({seen.words}): relax it by algorithm.beta = 0.25, or "
        "give a smaller optimizer.lr or algorithm.tau."
    )
