"""Checkpoints for a transformers `Trainer` with a DistributedOptimizer. All nodes write them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stgt._internal.checks import check_count
from stgt.torch.data import ClockSampler


class CheckpointCallback(TrainerCallback):
    """Loads with `opt.load` at the start, and saves with `opt.save` after every few rounds, at all nodes.

    In addition to the optimiser's state it keeps the learning-rate schedule and the Trainer's step. The same script
    starts a training and continues it, under torchrun and in an elastic training. There a newcomer receives all of this
    from a member. The training continues bit for bit if the loader uses a `ClockSampler`; another loader begins a new
    epoch.

    Two properties of the Trainer: it does one more step even if the checkpoint is that of the last step, and it divides
    the first loss that it logs by all steps so far.

    Args:
        folder: of the checkpoints, the same at all nodes or one for each.
        every: the number of rounds between two checkpoints; the end is saved too.
        rounds: after which training stops. An elastic training needs it, because nodes differ in their steps.
    """

    def __init__(self, folder: Path | str, every: int = 10, rounds: int | None = None):
        self.folder, self.every = Path(folder), check_count(every, "every")
        self.rounds = None if rounds is None else check_count(rounds, "rounds")
        self._saved = 0  # the round of the last checkpoint
        self._steps = 0  # the optimiser's steps at the start of this step of the Trainer
        self._random: torch.Tensor | None = None  # the state of torch's generator that was loaded

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        opt, scheduler, loader = _inside(parts["optimizer"]), parts["lr_scheduler"], parts["train_dataloader"]
        found = opt.load(self.folder)
        if found is None:
            return
        if found["written_by"]:
            self._saved, self._random = found["round"], torch.get_rng_state()
        kept = found["extra"] or {"step": found["steps"], "steps": found["steps"]}
        state.global_step = kept["step"]
        if "lr_scheduler" in kept:
            scheduler.load_state_dict(kept["lr_scheduler"])
        else:  # a newcomer's, of members that have not saved yet: its lr came with the optimiser's state
            scheduler.last_epoch = kept["step"]
        for _ in range(found["steps"] - kept["steps"]):  # steps since then: a checkpoint may be written within a step
            state.global_step += 1
            scheduler.step()
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(sampler, ClockSampler):
            sampler.start = state.global_step * args.gradient_accumulation_steps

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        # All members save at the beginning of a round. A newcomer does too: this may be its first step.
        opt = _inside(parts["optimizer"])
        self._steps = opt.steps_taken
        if self._random is not None:  # the loader has since drawn a seed for its workers
            torch.set_rng_state(self._random)
            self._random = None
        if opt.taken == 0 and opt.round % self.every == 0 and opt.round != self._saved:
            self._save(opt, state, parts["lr_scheduler"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if self.rounds is not None and _inside(parts["optimizer"]).round >= self.rounds:
            control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        opt = _inside(parts["optimizer"])
        self._steps = opt.steps_taken
        self._save(opt, state, parts["lr_scheduler"])

    def _save(self, opt: Any, state: TrainerState, scheduler: Any) -> None:
        def extra() -> dict[str, Any]:
            return {"step": state.global_step, "steps": self._steps, "lr_scheduler": scheduler.state_dict()}

        opt.save(self.folder, extra)
        self._saved = opt.round


def _inside(optimizer: Any) -> Any:
    """The DistributedOptimizer that Accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)
