"""Joining the processes that train together: torch's process group, its store, and the failure detector."""

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
from torch.distributed import (
    DistError,
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from stgt._internal.checks import InputError, check_flag, check_number, first_line
from stgt.torch.addresses import LOOPBACK, open_store
from stgt.torch.failure_detector import PREFIX, FailureDetector, LostNodeError
from stgt.torch.node_status import Wait

BACKEND_TIMEOUT = timedelta(days=7)  # the backend's own timeout cannot distinguish a lost node from a slow one

_detector: FailureDetector | None = None


# -- joining -----------------------------------------------------------------------------------------------------------


def init(backend: str | None = None, *, timeout: float = 300.0, elastic: bool = False) -> int:
    """Joins the process group that torchrun's environment describes. Without torchrun, it is a group of one process.

    Args:
        backend: "gloo" or "nccl"; by default nccl if there is a GPU for each process of this machine, else gloo.
        timeout: seconds without progress after which a node counts as lost. It must be longer than a local step.
        elastic: may nodes leave, be lost and join during the training? Then you do not use torchrun: you start each
            node separately, with the lighthouse's address as TORCHFT_LIGHTHOUSE in its environment.

    Returns:
        This process's rank; 0 if elastic, where `DistributedOptimizer` finds the other nodes.
    """
    timeout = check_number(timeout, "timeout", above=0)
    if check_flag(elastic, "elastic"):
        from stgt.torch.elastic_node import join

        if backend not in (None, "gloo"):
            raise InputError("backend", backend, "elastic training runs over gloo: leave backend out.")
        join(timeout)
        return 0
    if dist.is_initialized():
        raise ValueError("init() was called but a process group exists already: call it once, before all else.")
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
    detector = _start_detector(rank, nodes, timeout)
    if _on_one_machine(nodes):
        interfaces = (name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", next(interfaces, "lo"))
    wait = timedelta(seconds=2 * timeout)  # the detector's own timeout ends first
    store = detector.open(lambda: _open_store(rank, nodes, wait))
    if backend == "gloo":
        _check_interface()
    detector.barrier(0, "stgt.torch.init()")
    with detector.waiting(Wait("stgt.torch.init()", "join")):
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=nodes, timeout=BACKEND_TIMEOUT
        )
        dist.barrier()  # the backend's connections exist from here on
    return rank


def get_detector() -> FailureDetector:
    """The failure detector of the default process group, whichever library made that; started if there is none."""
    rank, nodes = dist.get_rank(), dist.get_world_size()
    if _detector is not None and not _detector.ended.is_set() and _detector.nodes == nodes:
        return _detector
    if nodes == 1:
        return FailureDetector(0, 1, 0.0)
    group = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    device = torch.device("cpu" if dist.get_backend() == "gloo" else "cuda")
    timeout = group._get_backend(device).options._timeout.total_seconds()
    detector = _start_detector(rank, nodes, timeout)
    hosts = rank == 0 and not _launcher_hosts_store()  # torch's own store is in the process of rank 0 too
    detector.open(lambda: (PrefixStore(f"stgt-failure-detector/{_restarts()}", store), hosts))
    detector.barrier(0, "DistributedOptimizer(…)")
    return detector


def report_failure(error: BaseException) -> None:
    """Reports to the other nodes why this one cannot continue. An exception that ends a script needs no call."""
    if _detector is not None:
        _detector.fail(error)


def leave() -> None:
    """Announces the end of this process. Call it only before os._exit: Python's own exit does it."""
    if _detector is not None:
        _detector.leave()


def _start_detector(rank: int, nodes: int, timeout: float) -> FailureDetector:
    global _detector
    _detector = FailureDetector(rank, nodes, timeout)
    atexit.register(_detector.leave)
    before, detector = sys.excepthook, _detector

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        detector.fail(error)
        before(kind, error, trace)
        if detector.report is not None and not isinstance(error, LostNodeError):
            lost = detector.error()
            if lost.rank != rank:  # a collective's own error does not name the node
                print(f"{PREFIX}{lost}", file=sys.stderr, flush=True)

    sys.excepthook = hook
    return _detector


def _refuse_lone_tasks() -> None:
    """A ValueError if srun has started several of this process: each would train alone."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "1")
    if "SLURM_PROCID" in os.environ and tasks != "1":
        raise ValueError(
            f"this is task {os.environ['SLURM_PROCID']} of {tasks} of a SLURM job, and RANK is not in the environment: "
            "start one torchrun on each machine, or set for each task RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS "
            "LOCAL_RANK=$SLURM_LOCALID, and the same MASTER_ADDR (the machine of task 0) and MASTER_PORT; to train "
            "alone, unset SLURM_PROCID."
        )


def _check_interface() -> None:
    """A ValueError if GLOO_SOCKET_IFNAME names an interface that this machine does not have."""
    given, there = os.environ.get("GLOO_SOCKET_IFNAME", ""), [name for _, name in socket.if_nameindex()]
    if given and not set(given.split(",")) <= set(there):
        raise ValueError(
            f"GLOO_SOCKET_IFNAME={given}: this machine has {', '.join(there)}; name the network interface at which the "
            "other machines reach it."
        )


# -- the store ---------------------------------------------------------------------------------------------------------


def _open_store(rank: int, nodes: int, wait: timedelta) -> tuple[Store, bool]:
    """The store of the world that the environment describes, and whether this process hosts it.

    If all processes are on one machine, it is a store that only this machine can reach. Otherwise it is torchrun's, or
    rank 0's.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    launcher = _launcher_hosts_store()
    if not _on_one_machine(nodes):
        hosts = rank == 0 and not launcher
        try:
            store = TCPStore(
                address, port, is_master=hosts, timeout=wait, wait_for_workers=False, multi_tenant=not launcher
            )
        except DistError as error:
            if hosts:
                raise ValueError(f"MASTER_PORT={port} cannot be used ({first_line(error)})") from None
            raise
        return PrefixStore(f"stgt/{_restarts()}", store), hosts
    if not launcher:
        return _loopback_store(rank, port, wait), rank == 0
    # torchrun's store listens on all addresses, so the nodes use it only to learn the port of their own.
    outer = TCPStore(address, port, is_master=False, timeout=wait)
    key = f"stgt/{_restarts()}/port"
    if rank == 0:
        store = _loopback_store(0, 0, wait)
        outer.set(key, str(store.port))
        return store, True
    return _loopback_store(rank, int(outer.get(key)), wait), False


def _on_one_machine(nodes: int) -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == str(nodes)


def _launcher_hosts_store() -> bool:
    """Does torchrun host the store of these processes?"""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _restarts() -> str:
    """How often torchrun has restarted these processes. It is part of the keys, because the store may outlive them."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _loopback_store(rank: int, port: int, wait: timedelta) -> TCPStore:
    """A store that only this machine can reach, hosted by rank 0."""
    if rank:
        return TCPStore(LOOPBACK, port, is_master=False, timeout=wait)
    try:
        return open_store(LOOPBACK, wait, port)
    except OSError as error:
        raise ValueError(f"MASTER_PORT={port} cannot be used ({error.strerror}): give another.") from None
