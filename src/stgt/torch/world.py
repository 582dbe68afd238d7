"""The processes that train together: joining them, and the watch over them."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from stgt._internal.checks import check_number
from stgt.torch.notes import attempt, from_launcher, on_one_machine, open_store
from stgt.torch.status import Wait
from stgt.torch.watch import SAYS, LostNodeError, Watch

BACKEND_TIMEOUT = timedelta(days=7)  # the backend's own time-out, which cannot tell a lost node from a slow one

_watch: Watch | None = None


def init(backend: str | None = None, *, timeout: float = 300.0) -> int:
    """Joins the process group that torchrun's environment describes; a world of one without torchrun.

    Args:
        backend: "gloo" or "nccl"; nccl where there is a GPU for each process of this machine, else gloo.
        timeout: seconds without a sign of progress after which a node counts as lost. Longer than a local step.

    Returns:
        This process's number among the nodes.
    """
    timeout = check_number(timeout, "timeout", above=0)
    if dist.is_initialized():
        raise ValueError("init() was called where a process group exists already: call it once, before all else.")
    if "RANK" not in os.environ:
        _refuse_lone_tasks()
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        return 0
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"{missing[0]} is not in the environment: start this script with torchrun.")
    rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, local_world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if backend is None:
        backend = "nccl" if torch.cuda.device_count() >= local_world else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    made = _start(rank, nodes, timeout)
    if on_one_machine(nodes):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
    store = made.open(lambda: open_store(rank, nodes, timedelta(seconds=2 * timeout)))  # the watch gives up before
    if backend == "gloo":
        _check_interface()
    made.meet(0, "stgt.torch.init()")
    with made.waiting(Wait("stgt.torch.init()", "join")):
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=nodes, timeout=BACKEND_TIMEOUT
        )
        dist.barrier()  # the backend's connections exist from here on
    return rank


def watch() -> Watch:
    """The watch over the default process group, also if that is another library's; started where there is none yet."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    if _watch is not None and not _watch.ended and _watch.nodes == nodes:
        return _watch
    if nodes == 1:
        return Watch(0, 1, 0.0)
    group = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    device = torch.device("cpu" if dist.get_backend() == "gloo" else "cuda")
    timeout = group._get_backend(device).options._timeout.total_seconds()
    made = _start(rank, nodes, timeout)
    keeps = rank == 0 and not from_launcher()  # torch's own store, too, is in the process of rank 0
    made.open(lambda: (PrefixStore(f"stgt-watch/{attempt()}", store), keeps))
    made.meet(0, "DistributedOptimizer(…)")
    return made


def all_reduce(value: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """torch's all_reduce, in place; a node that is lost meanwhile is named by a LostNodeError."""
    with watch().waiting(Wait("torch.distributed.all_reduce()", "torch")):
        dist.all_reduce(value, op=op)
    return value


def failed(error: BaseException) -> None:
    """Tells the other nodes why this one cannot go on; a script that ends by an exception does so by itself."""
    if _watch is not None:
        _watch.fail(error)


def leave() -> None:
    """Says that this process ends; a script that ends by itself does so, one that calls os._exit has to."""
    if _watch is not None:
        _watch.leave()


def _start(rank: int, nodes: int, timeout: float) -> Watch:
    global _watch
    _watch = Watch(rank, nodes, timeout)
    atexit.register(_watch.leave)
    before, made = sys.excepthook, _watch

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        made.fail(error)
        before(kind, error, trace)
        told = made.error()
        if told is not None and not isinstance(error, LostNodeError) and told.rank != rank:
            print(f"{SAYS}{told}", file=sys.stderr, flush=True)  # what a collective's own error does not say

    sys.excepthook = hook
    return _watch


def _refuse_lone_tasks() -> None:
    """A ValueError if srun has started several of this process, each of which would train by itself."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "1")
    if "SLURM_PROCID" in os.environ and tasks != "1":
        raise ValueError(
            f"this is task {os.environ['SLURM_PROCID']} of {tasks} of a SLURM job, and RANK is not in the environment: "
            "start one torchrun on each machine, or set for each task RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS "
            "LOCAL_RANK=$SLURM_LOCALID, and the same MASTER_ADDR (the machine of task 0) and MASTER_PORT; to train "
            "alone, unset SLURM_PROCID."
        )


def _check_interface() -> None:
    """A ValueError if gloo is told to listen where it cannot."""
    told, there = os.environ.get("GLOO_SOCKET_IFNAME", ""), [name for _, name in socket.if_nameindex()]
    if told and not set(told.split(",")) <= set(there):
        raise ValueError(
            f"GLOO_SOCKET_IFNAME={told}: this machine has {', '.join(there)}; name the network interface by which the "
            "other machines reach it."
        )


def _loopback_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
