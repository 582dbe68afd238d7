"""Runs a recipe as one of torchrun's processes, then the plain loop with the same batches: recipe.py RECIPE GROUP OUT

RECIPE is an example and its options ("lightning_training.py --manual"), or the name of a function in recipes_inside.
GROUP says who makes the process group of the latter: "library" or "stgt". OUT-RANK.json gets what was found.
"""

import copy
import json
import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.utils.data import Subset, default_collate

import stgt
import stgt.torch
from stgt.torch import DistributedOptimizer

EXAMPLES = Path(__file__).parents[2] / "examples"
TAU = 3


@dataclass
class Plain:
    """What a recipe's loop does, step by step."""

    steps: int
    base: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    rate: Callable[[int], float] = lambda step: 0.1
    parts: int = 1  # batches that are accumulated
    clip: float | None = None


def fading(step: int) -> float:
    return 0.1 * 0.99**step


PLAIN = {
    "lightning_training.py": Plain(90, rate=fading, clip=1.0),
    "lightning_training.py --manual": Plain(90, rate=fading),
    "accelerate_training.py": Plain(90, rate=fading, parts=2, clip=1.0),
    "transformers_trainer.py": Plain(
        90,
        base=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3),
        rate=lambda step: 5e-3 * (1 - step / 90),  # the Trainer's own schedule
        parts=2,
        clip=1.0,
    ),
    "lightning": Plain(30),
    "accelerate": Plain(30),
    "trainer": Plain(30, rate=lambda step: 0.1 * (1 - step / 30), parts=2, clip=1.0),
}


COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier", "broadcast")
COLLECTIVES += ("broadcast_object_list", "gather_object", "reduce", "reduce_scatter_tensor", "scatter_object_list")


class Recorded(DistributedOptimizer):
    """Remembers where it started from, and what others than stgt asked of all processes until its last step."""

    asked: ClassVar[list[str]] = []

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        parameters = [one for group in self.param_groups for one in group["params"]]
        self.start = [one.detach().clone() for one in parameters]
        for name in COLLECTIVES:
            setattr(dist, name, self.counted(name, getattr(dist, name)))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args, **options):
            asker = sys._getframe(1).f_globals["__name__"]
            if not asker.startswith(("stgt.", "torch.")):
                self.asked.append(f"{name} by {asker}")
            return function(*args, **options)

        return call

    def step(self, closure=None):
        if self.steps_taken == 0:
            self.asked.clear()
        loss = super().step(closure)
        self.others = list(self.asked)
        return loss


def run(recipe: str, group: str) -> tuple[dict, list[list[int]]]:
    """The recipe's names, and the samples of each batch that was fetched from a node's share."""
    fetched: list[list[int]] = []
    original = Subset.__getitems__

    def recording(self, indices):
        fetched.append([int(self.indices[i]) for i in indices])
        return original(self, indices)

    Subset.__getitems__ = recording
    stgt.torch.DistributedOptimizer = Recorded
    name, *options = recipe.split()
    if name.endswith(".py"):
        sys.argv = [name, *options]
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    else:
        import recipes_inside

        rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if group == "stgt":
            stgt.torch.init(timeout=60)
        names = getattr(recipes_inside, name)(rank, nodes)
    Subset.__getitems__ = original
    return names, fetched


def repeat(plain: Plain, net: torch.nn.Module, start: list[torch.Tensor], batches: list) -> list[torch.Tensor]:
    """The same training as a loop of one's own; the model's parameters at its end."""
    for parameter, value in zip(net.parameters(), start, strict=True):
        parameter.data = value.clone()
    base = plain.base(net.parameters())
    opt = DistributedOptimizer(base, stgt.STGT(tau=TAU), "complete", model=net)
    for step in range(plain.steps):
        base.param_groups[0]["lr"] = plain.rate(step)
        opt.zero_grad()
        losses = [sums(net, batch) for batch in batches[step * plain.parts : (step + 1) * plain.parts]]
        (sum(loss for loss, _ in losses) / sum(count for _, count in losses)).backward()
        if plain.clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), plain.clip)
        opt.step()
    assert (opt.round, opt.taken) == (plain.steps // TAU, 0)
    return [parameter.detach() for parameter in net.parameters()]


def sums(net: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    """The sum of the losses of a batch, and of how many labels it is."""
    if isinstance(batch, dict):
        labels = batch["labels"][:, 1:].reshape(-1)
        outputs = net(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    else:
        x, labels = batch
        outputs = net(x)
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"), int((labels >= 0).sum())


def main(recipe: str, group: str, out: str) -> None:
    names, fetched = run(recipe, group)
    plain, model, mine, dataset = PLAIN[recipe], names["model"], names["mine"], names["dataset"]
    opt = names.get("opt") or model.opt
    fetched = fetched[: plain.steps * plain.parts]
    batches = [default_collate([dataset[i] for i in indices]) for indices in fetched]
    net = getattr(model, "net", model)
    ended = [parameter.detach().clone() for parameter in net.parameters()]
    if recipe == "transformers_trainer.py":  # what each node has saved half-way goes on to the same end
        names["trainer"].train(resume_from_checkpoint=f"runs/trainer/node-{dist.get_rank()}/checkpoint-45")
        assert all(torch.equal(a, b) for a, b in zip(ended, net.parameters(), strict=True))
    again = repeat(plain, copy.deepcopy(net), opt.start, batches)
    found = {
        "rounds": opt.round,
        "off": max((a - b).abs().max().item() for a, b in zip(ended, again, strict=True)),
        "moved": max((a - b).abs().max().item() for a, b in zip(ended, opt.start, strict=True)),
        "share": sorted(mine.indices),
        "batches": fetched,
        "others": opt.others,
        "timeout": opt.membership._detector.timeout,
        "mean": names.get("mean"),
    }
    Path(f"{out}-{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
