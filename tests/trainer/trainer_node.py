"""A node that trains by the Trainer of transformers, and may kill itself: trainer_node.py FOLDER ROUNDS [KILL_AT]

Under torchrun, or elastic if there is a lighthouse. Rank 1 is killed in round KILL_AT. It prints each round, and writes
its final model as final-RANK.safetensors.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init
from stgt.torch.huggingface import CheckpointCallback

TAU, PARTS = 3, 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(6, 3), torch.nn.Dropout(0.2)

    def forward(self, x, labels):
        scores = self.layer(self.drop(x))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


class ClockTrainer(Trainer):
    """Batches by (seed, node, step) alone."""

    def get_train_dataloader(self):
        sampler = ClockSampler(len(self.train_dataset), 4, node=self.node)
        return DataLoader(self.train_dataset, batch_sampler=sampler)


class Killer(TrainerCallback):
    def __init__(self, opt, victim: bool, at: int):
        self.opt, self.victim, self.at = opt, victim, at

    def on_step_end(self, args, state, control, **parts):
        rate = parts["lr_scheduler"].get_last_lr()[0]
        if self.opt.taken == 0:
            said = f"round {self.opt.round} step {state.global_step} lr {rate:.9g} of {self.opt.nodes}\n"
            sys.stdout.write(said)  # in one piece: others write to the same pipe
            sys.stdout.flush()
        if self.victim and (self.opt.round, self.opt.taken) == (self.at, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)


def main(folder: str, rounds: str, kill_at: str = "-1") -> None:
    torch.set_num_threads(1)
    elastic = "TORCHFT_LIGHTHOUSE" in os.environ
    rank = init(elastic=elastic, timeout=60)
    node = int(os.environ["STGT_NODE"]) if elastic else rank
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    torch.manual_seed(node)
    dataset = [{"x": torch.randn(6) + label, "labels": torch.tensor(label)} for label in (node, 2) for _ in range(20)]
    model = Net()
    opt = DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=1e-2), stgt.STGT(tau=TAU, beta=0.25), "complete", model=model
    )
    steps = int(rounds) * TAU
    arguments = TrainingArguments(
        f"{folder}/trainer-{node}",
        use_cpu=True,
        max_steps=10 * steps if elastic else steps,
        gradient_accumulation_steps=PARTS,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    checkpoints = CheckpointCallback(f"{folder}/checkpoints", every=4, rounds=int(rounds) if elastic else None)
    trainer = ClockTrainer(model, arguments, train_dataset=dataset, optimizers=(opt, None))
    trainer.node = node
    trainer.add_callback(checkpoints)
    trainer.add_callback(Killer(opt, node == 1, int(kill_at)))
    trainer.train()
    final = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_file(final, str(Path(folder) / f"final-{node}.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
