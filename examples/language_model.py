"""A language model over several processes: torchrun --nproc-per-node 4 examples/language_model.py

A small transformer learns to predict the next character. Every node has a different kind of text. The texts come with
Python and its packages, so nothing is downloaded. All methods start from the same model and use the same batches.
"""

import argparse
import csv
import itertools
import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import stgt
from stgt.study.report import Figure, Line, Panel, draw
from stgt.torch import ClockSampler, DistributedOptimizer, init

CONTEXT, BATCH, WIDTH, LAYERS, HEADS, CHARACTERS = 64, 16, 64, 2, 4, 128
LIBRARY, PACKAGES = Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parents[1]
KINDS = {  # kinds of text and their places; node i uses the i-th kind that this machine has
    "Python": (LIBRARY, "*.py"),
    "licences": (PACKAGES, "*.dist-info/**/*LICEN[CS]E*"),
    "C++": (PACKAGES / "torch" / "include" / "c10", "**/*.h"),
    "character tables": (LIBRARY / "encodings", "*.py"),
    "manual": (LIBRARY / "pydoc_data", "topics.py"),
    "font tables": (PACKAGES / "matplotlib" / "mpl-data", "**/*.afm"),
}
ENOUGH = 1000  # rows that a kind of text must have at least
INNER: dict[str, Callable[..., torch.optim.Optimizer]] = {  # the optimiser of the local steps
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
}
RATES = {"adamw": 1.2e-2, "sgd": 3.0, "momentum": 0.3}  # the lr of each, if --lr is not given
ROW = "{seed:4} {lr:6g} {step:5} {method:16} {loss:6.3f} {MB:8.2f} {seconds:8.1f}"
DEFAULT = ["all-reduce", "FedAvg", "ST-GT-0.25", "DiLoCo-0.6"]


def methods(tau: int) -> dict[str, dict[str, Any] | None]:
    """The arguments of DistributedOptimizer for each method; None means averaging the gradients at every step instead.

    The number in a name is the beta of a tracker or the momentum of an outer step. An outer step has lr 0.7, and
    outer-… has momentum 0.6.
    """
    dpsgd, relaxed = stgt.DPSGD(tau=tau, atc=True), stgt.STGT(tau=tau, beta=0.25)
    return {
        "all-reduce": None,
        "FedAvg": {"algorithm": stgt.FedAvg(tau=tau), "topology": "complete"},
        "D-PSGD": {"algorithm": dpsgd, "topology": "exponential"},
        "ST-GT": {"algorithm": stgt.STGT(tau=tau), "topology": "exponential"},
        "ST-GT-0.25": {"algorithm": relaxed, "topology": "exponential"},
        "LED-0.25": {"algorithm": stgt.LED(tau=tau, beta=0.25), "topology": "exponential"},  # not with AdamW
        "DiLoCo-0.9": {"algorithm": stgt.DiLoCo(tau=tau), "topology": "complete"},
        "DiLoCo-0.6": {"algorithm": stgt.DiLoCo(tau=tau, momentum=0.6), "topology": "complete"},
        "outer-D-PSGD": {"algorithm": stgt.Outer(dpsgd), "topology": "exponential"},
        "outer-ST-GT-0.25": {"algorithm": stgt.Outer(relaxed), "topology": "exponential"},
        "outer-ST-GT-0.1": {"algorithm": stgt.Outer(stgt.STGT(tau=tau, beta=0.1)), "topology": "exponential"},
        "NoLoCo": {"algorithm": stgt.NoLoCo(tau=tau), "topology": "random_matching"},
    }


def read(folder: Path, pattern: str) -> Tensor:
    """The texts of a kind, each once, joined and cut into rows of CONTEXT + 1 characters."""
    texts = dict.fromkeys(path.read_text("utf-8", "replace") for path in sorted(folder.glob(pattern)) if path.is_file())
    codes = np.frombuffer("\n".join(texts).encode("ascii", "replace"), np.uint8).astype(np.int64)
    return torch.from_numpy(codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1))


def share(node: int, nodes: int) -> tuple[str, Tensor, Tensor]:
    """A node's kind of text, its training rows, and its held-out rows, which are the last 10 of every 100."""
    found = [(kind, rows) for kind, place in KINDS.items() if len(rows := read(*place)) >= ENOUGH]
    kind, rows = found[node % len(found)]
    first, alike = node // len(found), len(range(node % len(found), nodes, len(found)))  # nodes may share a kind
    held = torch.arange(len(rows)) % 100 >= 90
    return kind, rows[~held][first::alike], rows[held][first::alike]


class Block(nn.Module):
    """Attention to the previous characters, then a perceptron."""

    def __init__(self):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH))
        self.join = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(heard.transpose(1, 2).flatten(2))
        return x + self.think(x)


class LanguageModel(nn.Module):
    """120,704 parameters."""

    def __init__(self):
        super().__init__()
        self.character, self.place = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, CHARACTERS)

    def loss(self, rows: Tensor) -> Tensor:
        """The mean of −log p(next character)."""
        x = self.blocks(self.character(rows[:, :-1]) + self.place.weight)
        return functional.cross_entropy(self.head(x).flatten(0, 1), rows[:, 1:].flatten())


def average_gradients(model: nn.Module) -> float:
    """Replaces the gradients by their mean over nodes; returns the bytes that each node sends in a ring all-reduce."""
    gradients, nodes = [parameter.grad for parameter in model.parameters()], dist.get_world_size()
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / nodes, gradients)
    return 2 * (nodes - 1) / nodes * flat.nbytes


def warm_up_and_cosine(opt: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The stepsize rises for a twentieth of the steps, and then falls to a tenth along a cosine."""
    warm_up = max(1, steps // 20)
    return torch.optim.lr_scheduler.LambdaLR(
        opt, lambda k: min(1.0, (k + 1) / warm_up) * (0.55 + 0.45 * math.cos(math.pi * k / steps))
    )


def train(
    given: dict[str, Any] | None,
    inner: str,
    mine: Tensor,
    held: Tensor,
    steps: int,
    every: int,
    lr: float,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Trains a model. Yields its measurements at the start, every `every` steps and at the end. All nodes must call."""
    torch.manual_seed(seed)
    model = LanguageModel()
    base = INNER[inner](model.parameters(), lr=lr)
    # With averaged gradients the models stay equal. The first round of this wrapper never ends: it only evaluates.
    silent = {"algorithm": stgt.FedAvg(tau=steps + 1), "topology": "complete"}
    opt = DistributedOptimizer(base, **(given or silent), model=model)
    scheduler = warm_up_and_cosine(opt, steps)
    sampler = ClockSampler(len(mine), BATCH, seed=seed)  # a batch depends only on (seed, node, step)
    looked_at = held[:: max(1, len(held) // 128)][:128]

    @torch.no_grad()
    def held_out_loss() -> float:
        return model.loss(looked_at).item()

    averaging = seconds = 0.0
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            loss = opt.evaluate(held_out_loss)["averaged"]  # of the mean model, on every node's kind of text
            sent = torch.tensor(averaging + opt.metrics()["bytes_sent"], dtype=torch.float64)
            dist.all_reduce(sent)  # the mean over nodes: one that computes means for others sends more than they do
            yield {"step": step, "loss": loss, "MB": sent.item() / dist.get_world_size() / 1e6, "seconds": seconds}
        if step < steps:
            began = time.perf_counter()
            opt.zero_grad()
            model.loss(mine[sampler.at(step)]).backward()
            if given is None:
                averaging += average_gradients(model)
            clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            scheduler.step()
            seconds += time.perf_counter() - began


def curves(rows: list[dict[str, Any]], over: str) -> tuple[Line, ...]:
    """The loss of each method at each lr: its mean over the seeds and its range, without the start, which all share."""
    found = []
    for name, lr in dict.fromkeys((row["method"], row["lr"]) for row in rows):
        own = [row for row in rows if (row["method"], row["lr"]) == (name, lr) and row["step"] > 0]
        steps = sorted({row["step"] for row in own})
        losses = np.array([[row["loss"] for row in own if row["step"] == step] for step in steps])
        x = np.array([next(row[over] for row in own if row["step"] == step) for step in steps])
        label = f"{name}, lr {lr:g}" if len({row["lr"] for row in rows}) > 1 else name
        found.append(Line(label, x, losses.mean(axis=1), losses.min(axis=1), losses.max(axis=1)))
    return tuple(found)


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """language_model.csv, .png and .pdf."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "language_model.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    by_steps = Panel("", "steps", "held-out loss of the mean model", curves(rows, "step"), ylog=False)
    by_bytes = Panel("", "MB sent by a node", "", curves(rows, "MB"), ylog=False, xlog=True)
    draw(Figure("language_model", (by_steps, by_bytes)), out / "language_model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tau", type=int, default=20, help="steps between two exchanges")
    parser.add_argument("--inner", choices=INNER, default="adamw", help="the optimiser of the local steps")
    parser.add_argument("--lr", nargs="+", type=float, help="one or more")
    parser.add_argument("--methods", nargs="+", choices=methods(1), default=DEFAULT)
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="one or more")
    parser.add_argument("--out", type=Path, help="a folder for the table and the figure")
    asked = parser.parse_args()
    rank, rows = init("gloo"), []
    kind, mine, held = share(rank, dist.get_world_size())
    print(f"node {rank}: {kind} ({mine.numel() / 1e6:.1f} MB)", flush=True)
    dist.barrier()
    if rank == 0:
        print("seed     lr  step method             loss  MB sent  seconds")
    every = asked.tau * max(1, asked.steps // (10 * asked.tau))
    given = methods(asked.tau)
    for seed, lr in itertools.product(asked.seed, asked.lr or [RATES[asked.inner]]):
        trained = (train(given[name], asked.inner, mine, held, asked.steps, every, lr, seed) for name in asked.methods)
        for reports in zip(*trained, strict=True):
            for name, found in zip(asked.methods, reports, strict=True):
                rows.append({"seed": seed, "lr": lr, "method": name, **found})
                if rank == 0:
                    print(ROW.format(**rows[-1]), flush=True)
    if rank == 0:
        for line in curves(rows, "step"):
            print(f"{line.label:26} at the end: {line.y[-1]:.3f}, seeds from {line.low[-1]:.3f} to {line.high[-1]:.3f}")
        if asked.out is not None:
            write(rows, asked.out)


if __name__ == "__main__":
    main()
