"""Where methods with a tracker that is not relaxed were seen to fail: what to say before a training starts."""

from __future__ import annotations

from typing import NamedTuple

from stgt.algorithms import OuterStep
from stgt.study.spec import build_algorithm
from stgt.study.spec.training import Training, TrainingSpec


class Seen(NamedTuple):
    """From which lr · tau on ST-GT with SGD failed on MNIST: eight nodes, exponential graph, batch 32, tau 5 or 10."""

    reach: float
    words: str


# By model and partition; docs/training.md has the table. With tau = 1 it was not seen to fail up to lr = 0.4, nor on
# resnet18, whose BatchNorm took lr · tau = 10 on CIFAR-10.
SEEN = {
    ("lenet", "two classes a node"): Seen(0.1, "1 of 14 runs at 0.1, 4 of 7 at 0.15, all at 0.4"),
    ("lenet", "iid data"): Seen(0.3, "1 of 2 runs at 0.3, both at 0.5 and more"),
    ("mlp", "two classes a node"): Seen(1.6, "all of 3 runs at 1.6"),
}


def cautions(runs: TrainingSpec) -> list[str]:
    """A sentence for each run whose rounds are as long as those of one that failed."""
    return [sentence for run in runs.runs if (sentence := _caution(run))]


def _caution(run: Training) -> str:
    algorithm, lr = build_algorithm(run.algorithm), run.optimizer.arguments.get("lr")
    data = "iid data" if run.data.partition == "iid" else "two classes a node"
    seen = SEEN.get((run.model.name, data))
    if seen is None or run.optimizer.name != "SGD" or not isinstance(lr, int | float):
        return ""
    inside = algorithm.inner if isinstance(algorithm, OuterStep) else algorithm
    relaxed = getattr(inside, "beta", 1.0) < 1.0
    if not algorithm.tracks or relaxed or algorithm.tau == 1 or lr * algorithm.tau < seen.reach * (1 - 1e-9):
        return ""
    return (
        f"{run.name}: lr · tau = {lr * algorithm.tau:g}; on MNIST with {data} ST-GT diverged or stopped learning with "
        f"{run.model.name} from lr · tau = {seen.reach:g} on ({seen.words}): relax it by algorithm.beta = 0.25, or "
        "give a smaller optimizer.lr or algorithm.tau."
    )
