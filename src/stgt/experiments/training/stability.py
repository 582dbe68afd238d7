"""Where methods with a tracker were seen to fail: what to say before a training starts."""

from __future__ import annotations

from stgt.experiments.training.spec import Training, TrainingSpec
from stgt.specs import make_algorithm

# From which lr · tau on ST-GT with plain SGD failed, by model, and what was seen: MNIST, eight nodes with two classes
# each, exponential graph, batch 32, tau = 5 and 10, 50 to 300 rounds. A network with BatchNorm was not seen to fail:
# resnet18 on CIFAR-10 with eight classes a node took lr · tau = 10.
DIVERGED = {
    "lenet": (0.1, "1 run of 12 diverged at 0.1, 1 of 4 at 0.15, all at 0.4"),
    "mlp": (1.6, "all of 3 runs stayed below 45 % there"),
}


def cautions(runs: TrainingSpec) -> list[str]:
    """A sentence for each run whose rounds are as long as those of one that failed."""
    return [sentence for run in runs.runs if (sentence := _caution(run))]


def _caution(run: Training) -> str:
    algorithm, lr = make_algorithm(run.algorithm), run.optimizer.arguments.get("lr")
    if run.model.name not in DIVERGED or run.optimizer.name != "SGD" or not isinstance(lr, int | float):
        return ""
    (limit, seen), reach = DIVERGED[run.model.name], lr * algorithm.tau
    if not algorithm.tracks or run.data.partition == "iid" or reach < limit * (1 - 1e-9):
        return ""
    return (
        f"{run.name}: lr · tau = {reach:g}; on MNIST with two classes a node ST-GT failed with {run.model.name} from "
        f"lr · tau = {limit:g} on ({seen}): if the loss grows, give a smaller optimizer.lr or algorithm.tau."
    )
