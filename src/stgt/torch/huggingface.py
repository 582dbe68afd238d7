"""Checkpoints of a transformers `Trainer` that trains by a DistributedOptimizer: of all nodes together, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stgt._internal.checks import check_count
from stgt.torch.data import ClockSampler


class CheckpointCallback(TrainerCallback):
    """Loads at the start what `opt.load` finds, and saves by `opt.save` after every few rounds, at all nodes.

    With the optimiser's state it keeps the learning-rate schedule and the Trainer's step. The same script starts a
    training and goes on with it, under torchrun and in an elastic training, where a newcomer takes all of this from a
    member. It goes on bit for bit if the loader draws by a `ClockSampler`; another loader begins a new epoch.

    The Trainer makes one step more even where the checkpoint is that of the last one, and divides the first loss that
    it logs by all steps so far.

    Args:
        folder: of the checkpoints, the same at all nodes or each its own.
        every: how many rounds apart they are.
        rounds: after which training stops. An elastic training needs it: nodes differ in how many steps they have made.
    """

    def __init__(self, folder: Path | str, every: int = 10, rounds: int | None = None):
        self.folder, self.every = Path(folder), check_count(every, "every")
        self.rounds = None if rounds is None else check_count(rounds, "rounds")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        opt, scheduler, loader = _inside(parts["optimizer"]), parts["lr_scheduler"], parts["train_dataloader"]
        found = opt.load(self.folder)
        if found is None:
            return
        kept = found["extra"] or {"step": found["steps"]}
        state.global_step = kept["step"]
        if "lr_scheduler" in kept:
            scheduler.load_state_dict(kept["lr_scheduler"])
        else:  # a newcomer's, of members that have not saved yet: its rates have come with the optimiser's state
            _inside_scheduler(scheduler).last_epoch = kept["step"]
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(sampler, ClockSampler):
            sampler.start = state.global_step * args.gradient_accumulation_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        opt, scheduler = _inside(parts["optimizer"]), parts["lr_scheduler"]
        if opt.taken:
            return
        if opt.round % self.every == 0:
            opt.save(self.folder, extra=lambda: {"step": state.global_step, "lr_scheduler": scheduler.state_dict()})
        if self.rounds is not None and opt.round >= self.rounds:
            control.should_training_stop = True


def _inside(optimizer: Any) -> Any:
    """The DistributedOptimizer that Accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def _inside_scheduler(scheduler: Any) -> Any:
    return getattr(scheduler, "scheduler", scheduler)
