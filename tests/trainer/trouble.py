"""Trainings that go wrong, each in one way: trouble.py WAY FOLDER TIMEOUT

Says how it ended as "ended: TYPE: WORDS", with exit code 0 if it ended well, 1 if the script failed, 3 for a lost node.
"""

import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import stgt
from stgt.torch import DistributedOptimizer, LostNodeError, failure_detector, init

FOREIGN = ("foreign_killed", "foreign_fails", "foreign_hangs", "foreign_slow_end")


def main(way: str, folder: str, timeout: str) -> None:
    torch.set_num_threads(1)
    failure_detector.HEARTBEAT_INTERVAL = 0.2
    failure_detector.ABORT_GRACE, failure_detector.EXIT_GRACE = 3.0, 0.6
    if way in FOREIGN:
        from datetime import timedelta

        dist.init_process_group("gloo", timeout=timedelta(seconds=float(timeout)))
        rank = dist.get_rank()
    else:
        rank = init(timeout=float(timeout))
    try:
        globals()[way](rank, Path(folder))
    except LostNodeError as error:
        print(f"ended: {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("ended: well", flush=True)


class Model(torch.nn.Module):
    def __init__(self, start: float = 0.0):
        super().__init__()
        self.u = torch.nn.Parameter(torch.full((3,), start))
        self.v = torch.nn.Parameter(torch.full((40,), start))


def made(
    model=None, algorithm=None, lr: float = 0.1, graph: str = "complete", **options
) -> tuple[Model, DistributedOptimizer]:
    model = model or Model()
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return model, DistributedOptimizer(sgd, algorithm or stgt.STGT(tau=2), graph, model=model, chunk=16, **options)


def step(model: Model, opt: DistributedOptimizer, factor: float = 1.0) -> None:
    opt.zero_grad()
    rank = dist.get_rank()
    loss = (model.u - rank).square().sum() + (model.v + rank).square().sum()
    (factor * loss).backward()
    opt.step()


def rounds(model: Model, opt: DistributedOptimizer, count: int) -> None:
    for _ in range(2 * count):
        step(model, opt)


def shout(rank: int, words: str) -> None:
    print(f"rank {rank} {words}", flush=True)


# -- not finite ------------------------------------------------------------------------------------------------------


def nan(rank: int, folder: Path) -> None:
    model, opt = made()
    for _ in range(8):
        step(model, opt, float("nan") if rank == 1 and opt.round == 2 else 1.0)
        if opt.taken == 0:
            opt.save(folder / "checkpoints")


def after_nan(rank: int, folder: Path) -> None:
    model, opt = made()
    shout(rank, f"goes on from round {opt.load(folder / 'checkpoints')['round']}")
    rounds(model, opt, 1)
    assert all(bool(one.isfinite().all()) for one in model.parameters())


def nan_for_ever(rank: int, folder: Path) -> None:
    model, opt = made(on_nonfinite="skip")
    for _ in range(60):
        step(model, opt, float("nan") if rank == 1 and opt.round >= 1 else 1.0)


def float16_overflow(rank: int, folder: Path) -> None:
    model, opt = made(message_dtype="float16")
    for _ in range(4):
        step(model, opt, 1e7 if rank == 1 else 1.0)


# -- unequal stepsizes -----------------------------------------------------------------------------------------------


def another_lr(rank: int, folder: Path) -> None:
    rounds(*made(algorithm=stgt.LED(tau=2), lr=0.2 if rank == 1 else 0.1, graph="ring"), 2)


def another_lr_early(rank: int, folder: Path) -> None:
    rounds(*made(lr=0.2 if rank == 1 else 0.1, early=True), 2)


def a_round_ended_early(rank: int, folder: Path) -> None:
    model, opt = made(algorithm=stgt.ProxSkip(tau=2))
    rounds(model, opt, 3)
    step(model, opt)
    opt.end_round() if rank == 1 else step(model, opt)


# -- one node alone --------------------------------------------------------------------------------------------------


def only_evaluate(rank: int, folder: Path) -> None:
    model, opt = made()
    for _ in range(4):
        rounds(model, opt, 1)
        if rank == 0:
            opt.evaluate(lambda: 1.0)


def only_metrics(rank: int, folder: Path) -> None:
    model, opt = made()
    for _ in range(4):
        rounds(model, opt, 1)
        if rank == 0:
            opt.metrics()


def only_save(rank: int, folder: Path) -> None:
    model, opt = made()
    for _ in range(4):
        rounds(model, opt, 1)
        if rank == 0:
            opt.save(folder / "checkpoints")


def only_averaged(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 2)
    if rank == 0:
        with opt.averaged():
            pass


def only_made(rank: int, folder: Path) -> None:
    if rank == 0:
        made()
    else:
        time.sleep(600)


def other_calls(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    opt.metrics() if rank == 0 else opt.evaluate(lambda: 1.0)


def unequal_loaders(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 2 + rank)
    opt.evaluate(lambda: 1.0)


# -- waiting in torch's own calls ------------------------------------------------------------------------------------


def barrier_while_one_hangs(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        shout(rank, "hangs")
        time.sleep(600)
    dist.barrier()


def barrier_on_one(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        dist.barrier()
    rounds(model, opt, 1)


def again_after_a_loss(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rounds(model, opt, 1)
    except LostNodeError:
        opt.evaluate(lambda: 1.0)


def killed_in_a_sum(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    opt.membership.sum(torch.ones(1))


# -- errors of one node's own ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hungry(stgt.STGT):
    """Asks for more memory than there is where a message is merged, once it is told to."""

    def merge(self, state, local, mixed):
        if os.environ.get("HUNGRY"):
            torch.empty(1 << 50)
        return super().merge(state, local, mixed)


def no_memory(rank: int, folder: Path) -> None:
    model, opt = made(algorithm=Hungry(tau=2))
    rounds(model, opt, 1)
    if rank == 1:
        os.environ["HUNGRY"] = "yes"
    rounds(model, opt, 2)


def own_error(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    opt.save(folder / "checkpoints")
    if rank == 1:
        raise KeyError("label 7 has no image")
    rounds(model, opt, 1)


def full_disk(rank: int, folder: Path) -> None:
    model, opt = made(Model())
    rounds(model, opt, 1)
    opt.save(folder / "checkpoints")
    rounds(model, opt, 1)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        opt.save(folder / "checkpoints")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))  # or its words could not be written either


def foreign_killed(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    rounds(model, opt, 1)


def foreign_fails(rank: int, folder: Path) -> None:
    own_error(rank, folder)


def foreign_hangs(rank: int, folder: Path) -> None:
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        time.sleep(600)
    rounds(model, opt, 1)


# -- nothing wrong ---------------------------------------------------------------------------------------------------


def slow_end(rank: int, folder: Path) -> None:
    """Rank 0, which keeps the store, has ended for longer than a farewell when rank 1 takes its last step."""
    model, opt = made()
    rounds(model, opt, 1)
    if rank == 1:
        time.sleep(3 * failure_detector.EXIT_GRACE)
    step(model, opt)


def foreign_slow_end(rank: int, folder: Path) -> None:
    slow_end(rank, folder)


def back_to_a_checkpoint(rank: int, folder: Path) -> None:
    """The last heartbeat that rank 0 has read of rank 1 was written in an exchange, before both went back."""
    model, opt = made()
    rounds(model, opt, 1)
    opt.save(folder / "checkpoints")
    if rank == 0:
        time.sleep(1.0)
    rounds(model, opt, 1)
    if rank == 1:
        opt.membership._detector._publish_and_check = lambda: None
    opt.load(folder / "checkpoints")
    if rank == 1:
        time.sleep(1.0)
    opt.metrics()


# -- two optimisers --------------------------------------------------------------------------------------------------


def two_in_order(rank: int, folder: Path) -> None:
    """The first one's round ends later on rank 1, and before the second one's on both."""
    (one, first), (two, second) = made(Model(0.0), lr=1e-9), made(Model(100.0), lr=1e-9)
    for _ in range(4):
        step(one, first)
        step(two, second)
    assert one.u.abs().max() < 1
    assert two.u.sub(100).abs().max() < 1


def two_out_of_order(rank: int, folder: Path) -> None:
    (one, first), (two, second) = made(Model(0.0), lr=1e-9), made(Model(100.0), lr=1e-9)
    for number in range(4):
        if not (rank == 1 and number == 1):  # a step that a GradScaler skips
            step(one, first)
        step(two, second)
    assert one.u.abs().max() < 1
    assert two.u.sub(100).abs().max() < 1
