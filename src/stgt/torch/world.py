"""The processes that train together: joining them, and noticing when one of them is lost.

Every process sends heartbeats: a thread of its own writes a counter into the launcher's store once a second, as long as
its training makes progress or waits for another. Whoever waits for a node without a heartbeat for `timeout` seconds, or
whose connection has closed, writes its number into the store; all others read it there, and stop with its name. No
node is blamed for being waited for by somebody slow, however long the chain of waiting nodes.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from stgt.checks import check_number

HEARTBEAT_INTERVAL = 1.0  # seconds between two heartbeats
BACKEND_TIMEOUT = timedelta(days=7)  # the backend's own time-out, which cannot tell a lost node from a slow one

_watch: Watch | None = None


class LostNodeError(RuntimeError):
    """Another node died, hangs or has left."""

    def __init__(self, words: str, rank: int | None = None):
        super().__init__(words)
        self.rank = rank


def init(backend: str | None = None, *, timeout: float = 300.0) -> int:
    """Joins the process group that torchrun's environment describes; a world of one without torchrun.

    Args:
        backend: "gloo" or "nccl"; nccl where there is a GPU for each process of this machine, else gloo.
        timeout: seconds without a sign of progress after which a node counts as lost. Longer than a local step.

    Returns:
        This process's number among the nodes.
    """
    global _watch
    timeout = check_number(timeout, "timeout", above=0)
    if dist.is_initialized():
        raise ValueError("init() was called where a process group exists already: call it once, before all else.")
    if "RANK" not in os.environ:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        return 0
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"{missing[0]} is not in the environment: start this script with torchrun.")
    local, local_world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if backend is None:
        backend = "nccl" if torch.cuda.device_count() >= local_world else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(seconds=max(timeout, 60.0)))))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backend, store=PrefixStore(f"stgt/{attempt}", store), rank=rank, world_size=world, timeout=BACKEND_TIMEOUT
    )
    dist.barrier()  # the backend's connections exist from here on
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A client of its own: a call of the training thread that blocks must not keep the heartbeat waiting.
    heartbeat_store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=min(timeout, 30.0)))
    keeps_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # torchrun keeps it else
    _watch = Watch(PrefixStore(f"stgt-watch/{attempt}", heartbeat_store), rank, timeout, keeps_store)
    atexit.register(_watch.leave)
    return rank


def watch() -> Watch:
    """The watch that `init` started; one that only waits, where the process group is the caller's own."""
    return _watch if _watch is not None else Watch(None, dist.get_rank(), 0.0)


class Watch:
    """Sends this process's heartbeats, and checks those of the nodes it waits for."""

    def __init__(self, store: Store | None, rank: int, timeout: float, keeps_store: bool = False):
        self.store, self.rank, self.timeout, self.keeps_store = store, rank, timeout, keeps_store
        self.round = 0
        self._progress = self._waiting = 0
        self.facing: int | None = None  # the node whose message is being waited for, where it is known
        self._awaited_peers: tuple[int, ...] = ()
        self._last_heartbeats: dict[int, tuple[bytes, float]] = {}  # by node, with the time it was first seen
        self._lost: tuple[int, str] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="stgt-watch", daemon=True)
        if store is not None:
            self._thread.start()

    # -- called by the training thread ---------------------------------------------------------------------------

    def progress(self, r: int) -> None:
        """Training goes on, in round r; raises LostNodeError if a node was lost meanwhile."""
        self.round = r
        self._progress += 1
        if self._lost is not None:
            raise self._diagnose(RuntimeError("a node was lost"))

    @contextmanager
    def waiting(self, peers: tuple[int, ...] = ()) -> Iterator[None]:
        """While this node talks with `peers` (all, if left out): backend errors become a LostNodeError with a name."""
        self._awaited_peers = peers or tuple(rank for rank in range(dist.get_world_size()) if rank != self.rank)
        self._waiting += 1
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, LostNodeError):
                raise
            raise self._diagnose(error) from error
        finally:
            self._waiting -= 1
            self.facing, self._awaited_peers, self._last_heartbeats = None, (), {}
            self._progress += 1

    def leave(self) -> None:
        """This process ends: others who still wait for it are told so, if it ends in good order."""
        if self.store is None:
            return
        running = not self._stopped.is_set()
        self._stop_heartbeats()
        if running and self._lost is None:
            with _errors_ignored():
                self.store.set(f"left/{self.rank}", str(self.round))

    def _stop_heartbeats(self) -> None:
        """A thread that came back from the store while the interpreter shuts down would abort the process."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(5 * HEARTBEAT_INTERVAL)

    # -- the heartbeat thread ------------------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        assert self.store is not None
        count, before, unreachable_for = 0, -1, 0.0
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            try:
                if self._waiting or self._progress != before:
                    before, count = self._progress, count + 1
                    self.store.set(f"heartbeat/{self.rank}", str(count))
                self._check_peers()
                unreachable_for = 0.0
            except Exception:  # the store is out of reach: so is the host that keeps it
                unreachable_for += HEARTBEAT_INTERVAL
                if unreachable_for >= min(self.timeout, 10.0):
                    self._lost = (0, "the launcher's store at its host cannot be reached")
            if self._lost is not None:
                self._abort_exchange()
                return

    def _check_peers(self) -> None:
        assert self.store is not None
        if self.store.check(["lost"]):
            self._read_report(self.store.get("lost"))
            return
        now = time.monotonic()
        for peer in self._awaited_peers if self._waiting else ():
            key = f"heartbeat/{peer}"
            heartbeat = self.store.get(key) if self.store.check([key]) else b""
            known, since = self._last_heartbeats.get(peer, (None, now))
            if heartbeat != known:
                self._last_heartbeats[peer] = (heartbeat, now)
            elif now - since > self.timeout:
                self._report_lost(peer, f"it has made no progress for {self.timeout:g} s")
                return

    def _report_lost(self, peer: int, why: str) -> None:
        """Writes the lost node into the store, unless somebody was faster."""
        assert self.store is not None
        report = self.store.compare_set("lost", "", f"{peer}:{self.round}:{why}")
        self._read_report(report)

    def _read_report(self, report: bytes) -> None:
        rank, r, why = report.decode().split(":", 2)
        self._lost = (int(rank), f"{why} (noticed in round {r})")

    def _abort_exchange(self) -> None:
        """Makes the training thread's blocked exchange fail: the backend closes its connections on a time-out.

        It takes a connection that is still open, as that of a hanging node is; others may have left already.
        """
        others = [rank for rank in range(dist.get_world_size()) if rank != self.rank]
        lost = self._lost[0] if self._lost is not None else -1
        while self._waiting and not self._stopped.is_set():
            if dist.get_backend() != "gloo":
                with _errors_ignored():
                    dist.group.WORLD._get_backend(torch.device("cuda")).abort()  # pyright: ignore
            else:
                for peer in sorted(others, key=lambda rank: rank != lost):
                    with _errors_ignored():
                        work = dist.irecv(torch.zeros(1), src=peer, tag=1 << 20)
                        if work is not None:
                            work.wait(timedelta(milliseconds=1))
            time.sleep(0.2)

    # -- what went wrong -----------------------------------------------------------------------------------------

    def _diagnose(self, error: RuntimeError) -> RuntimeError:
        """The LostNodeError behind a backend's error; the error itself where no other node is to blame."""
        if self._lost is None and self.store is not None:
            with _errors_ignored():
                self._find_lost_node()
        if self._lost is not None:
            if self.keeps_store:
                time.sleep(3 * HEARTBEAT_INTERVAL)  # the others read the lost node's name in this process
            self._stop_heartbeats()
            return self._lost_node_error()
        words = str(error)
        if "Connection" in words or "closure" in words or "Timed out" in words:
            peers = ", ".join(map(str, self._awaited_peers))
            return LostNodeError(
                f"the connection to one of the nodes {peers} was lost in round {self.round} ({words})."
            )
        return error

    def _find_lost_node(self) -> None:
        """Who is gone: the node that was faced, or of those waited for the one that has left or sends no heartbeats.

        A node that stops because of another has written that one's number into the store before.
        """
        assert self.store is not None
        suspects = self._awaited_peers if self.facing is None else (self.facing,)
        before = self._heartbeats_of(suspects)
        while self._lost is None:
            if self.store.check(["lost"]):
                return self._read_report(self.store.get("lost"))
            for peer in suspects:
                if self.store.check([f"left/{peer}"]):
                    r = self.store.get(f"left/{peer}").decode()
                    return self._report_lost(peer, f"it ended its training in round {r}, before the others did")
            if len(suspects) == 1:
                return self._report_lost(suspects[0], "its connection was closed")
            time.sleep(3 * HEARTBEAT_INTERVAL)
            now = self._heartbeats_of(suspects)
            silent = [peer for peer in suspects if now[peer] == before[peer]]
            suspects = ((silent or list(suspects))[0],)
        return None

    def _heartbeats_of(self, peers: tuple[int, ...]) -> dict[int, bytes]:
        assert self.store is not None
        keys = {peer: f"heartbeat/{peer}" for peer in peers}
        return {peer: self.store.get(key) if self.store.check([key]) else b"" for peer, key in keys.items()}

    def _lost_node_error(self) -> LostNodeError:
        assert self._lost is not None
        rank, why = self._lost
        return LostNodeError(
            f"rank {rank} was lost: {why}. Rank {self.rank} stops in round {self.round}; "
            "the last complete checkpoint is intact.",
            rank,
        )


@contextmanager
def _errors_ignored() -> Iterator[Any]:
    """Leaves out what a dying world throws."""
    try:
        yield
    except Exception:
        return
