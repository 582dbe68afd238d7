"""A small training that can be killed: resumable.py FOLDER ROUNDS [TIMEOUT [STALL_RANK STALL_ROUND]]

Saves every second round, says each round it begins, and writes its final model as final-RANK.safetensors.
"""

import sys
import time
from pathlib import Path

import scenarios
import torch
from safetensors.torch import save_file

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, LostNodeError, init


def main(folder: str, rounds: str, timeout: str = "60", *stall: str) -> None:
    torch.set_num_threads(1)
    rank = init(timeout=float(timeout))
    try:
        train(rank, Path(folder), int(rounds), tuple(map(int, stall)))
    except LostNodeError as error:
        print(f"stopped: {error}", flush=True)
        sys.exit(3)


def train(rank: int, folder: Path, rounds: int, stall: tuple[int, ...]) -> None:
    nodes = torch.distributed.get_world_size()
    made = scenarios.problem(nodes)
    model = scenarios.Linear(torch.float64)
    opt = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        stgt.STGT(tau=3),
        "exponential",
        model=model,
        chunk=20,
    )
    opt.load(folder / "checkpoints")
    sampler, said = ClockSampler(int(made.counts[rank]), 2), -1
    while opt.round < rounds:
        if opt.round != said:
            said = opt.round
            sys.stdout.write(f"rank {rank} round {said}\n")  # in one piece: others write to the same pipe
            sys.stdout.flush()
        if stall == (rank, opt.round):
            time.sleep(600)  # hangs
        time.sleep(0.02)  # so that a kill falls into a round
        opt.zero_grad()
        scenarios.loss_of(model, made, rank, sampler.at(opt.steps_taken)).backward()
        opt.step()
        if opt.taken == 0 and opt.round % 2 == 0:
            opt.save(folder / "checkpoints")
    save_file({"x": model.vector().detach()}, str(folder / f"final-{rank}.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
