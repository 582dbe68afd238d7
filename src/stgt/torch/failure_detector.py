"""The failure detector: finds out when a node is lost, or when nodes wait for one another.

Each process runs two threads. The store thread publishes a status once a second (the progress of the training, what it
waits for, its line of the script) and reads those of the others. A node is lost if for `timeout` seconds it neither
makes progress nor waits, or if its connection has closed. The node that waits for it publishes a report. All others
read the report, and all stop with the same error. A node that waits is not lost, however long the chain of waiting
nodes. A cycle of nodes that wait for one another is reported at once.

The store itself may be lost, and a call to a lost store never returns. So only the store thread calls the store. The
clock thread never blocks: it treats a store that is silent for `timeout` seconds as lost, and ends the process if the
training does not return from a blocked call after a report.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from stgt._internal.checks import quoted
from stgt.torch.node_status import (
    UNEQUAL_LOADERS,
    UNREACHABLE,
    JsonStore,
    Status,
    Wait,
    describe_deadlock,
    describe_place,
    find_cycle,
    torch_collective,
    user_line,
)

HEARTBEAT_INTERVAL = 1.0  # seconds between two heartbeats
TICK = 0.1  # seconds between two checks of the clock thread
ABORT_GRACE = 5.0  # seconds for a blocked call to fail after a report
EXIT_GRACE = 3.0  # seconds for the others to read the last report of a process that ends, or to send a heartbeat
EXIT_CODE = 3  # of a process that the detector ended
PREFIX = "stgt (a node was lost): "  # of what such a process prints
REPORT_KEY = "report"


class LostNodeError(RuntimeError):
    """Another node died, failed, hangs or has left."""

    def __init__(self, words: str, rank: int | None = None):
        super().__init__(words)
        self.rank = rank


class DeadlockError(LostNodeError):
    """Nodes wait for one another: they made different calls, or the same calls in another order."""


class FailureDetector:
    """Publishes this process's heartbeats, and checks those of the nodes that it waits for.

    Args:
        rank, nodes: of this process, and the number of processes; a single process needs no detector.
        timeout: seconds without a sign of progress after which a node counts as lost.
    """

    def __init__(self, rank: int, nodes: int, timeout: float):
        self.rank, self.nodes, self.timeout = rank, nodes, timeout
        self.others = tuple(other for other in range(nodes) if other != rank)
        self.round = 0
        self.checkpoint = ""  # text about the last complete checkpoint
        self.rounds: dict[str, int] = {}  # by scope: rounds done in this process
        self._barriers: dict[str, int] = {}
        self.scopes = count(1)  # a number for each optimiser
        self._awake = 0.0  # seconds for which this process was not stopped
        self._progress, self._last_progress = 0, 0.0
        self._wait: Wait | None = None
        self._heartbeat = 0
        self._seen: dict[Any, tuple[Any, float]] = {}  # by node, or "all": its last progress, and since when
        self.report: dict[str, Any] | None = None  # of a lost node; all nodes stop with it
        self._given_up: float | None = None  # when a blocked call was made to fail
        self._store: Any = None
        self._json: Any = None
        self._hosts_store, self._store_lost = False, False
        self._store_answered = 0.0  # time of its last answer, in seconds awake
        self._training_thread = threading.get_ident()
        self.ended = threading.Event()  # this process has announced its end
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    # -- called by the training thread -------------------------------------------------------------------------------

    def open(self, connect: Callable[[], tuple[Store, bool]]) -> Store:
        """Starts the threads, opens the store and publishes a first status."""

        def opened() -> Store:
            # The store ends with the object, and others may still need it. The clone has its own connection, so that
            # torch's calls and the detector's do not wait for one another.
            self._store, self._hosts_store = connect()
            own = PrefixStore("failure_detector", self._store).clone()  # pyright: ignore[reportAttributeAccessIssue]
            self._json = JsonStore(own)
            self._json.put(f"status/{self.rank}", asdict(self._status(None)))
            return self._store

        self._start(self._run_store_thread)
        self._start(self._run_clock_thread)
        try:
            return self._on_store_thread(opened)
        except dist.DistError:
            raise self.error() from None

    def progress(self, r: int) -> None:
        """Records a step in round r; raises the reported error if a node was lost since the last step."""
        self.round = r
        self._progress += 1
        self._last_progress = self._awake
        if self.report is not None:
            raise self.error()

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[Wait]:
        """Inside the block this node communicates: a backend's error becomes a LostNodeError that names the node."""
        if self.report is not None:
            raise self.error()
        wait.peers = wait.peers or self.others
        self._wait, self._training_thread = wait, threading.get_ident()
        try:
            yield wait
        except RuntimeError as error:
            # The backend and the store raise a DistError or, like gloo, a plain RuntimeError. Its subclasses are about
            # this process, such as torch.OutOfMemoryError.
            if self.nodes == 1 or not (type(error) is RuntimeError or isinstance(error, dist.DistError)):
                raise
            raise self._diagnose(wait) from error
        finally:
            self._wait = None
            self._progress += 1
            self._last_progress = self._awake

    def barrier(self, scope: int, call: str, value: Any = None, r: int = 0) -> list[Any]:
        """Waits until all nodes have made this call; returns each node's value, by rank."""
        if self.nodes == 1:
            return [value]
        number = self._barriers[str(scope)] = self._barriers.get(str(scope), 0) + 1
        keys = [f"barrier/{scope}/{number}/{rank}" for rank in range(self.nodes)]
        with self.waiting(Wait(call, "barrier", scope, number, r)):
            self._on_store_thread(lambda: self._json.put(keys[self.rank], {"call": call, "round": r, "value": value}))
            given, pause = None, 0.0005
            while given is None:
                time.sleep(pause)
                pause = min(1.5 * pause, 0.02)
                given = self._on_store_thread(lambda: self._json.get_all(keys))
            for rank, one in enumerate(given):
                if one["call"] != call:
                    raise DeadlockError(
                        f"rank {self.rank} has called {call} where rank {rank} has called {one['call']}: all nodes "
                        "must make the same calls in the same order."
                    )
            if number > 1:  # all have reached this barrier, so all have read the values of the one before
                self._on_store_thread(lambda: self._json.remove(f"barrier/{scope}/{number - 1}/{self.rank}"))
        for rank, one in enumerate(given):
            if one["round"] != given[0]["round"]:
                raise ValueError(
                    f"{call} was called after {given[0]['round']} rounds by rank 0 and after {one['round']} by rank "
                    f"{rank}: give all nodes as many, by a loop over opt.batches(loader)."
                )
        return [one["value"] for one in given]

    def fail(self, error: BaseException) -> None:
        """Reports to the others why this process cannot continue."""
        if not self._is_running() or self.report is not None or isinstance(error, LostNodeError):
            return
        with suppress(Exception):
            self._on_store_thread(lambda: self._publish_report("failed", self.rank, quoted(error)), EXIT_GRACE)

    def leave(self) -> None:
        """Announces the end of this process, and ends the threads."""
        if not self._is_running():
            return
        self.ended.set()
        with suppress(Exception):
            if not self._store_lost:
                self._on_store_thread(self._announce_exit, self.timeout + 2 * EXIT_GRACE)
        self._jobs.put(None)
        for thread in self._threads:  # one that returns from torch's code during Python's shutdown aborts the process
            thread.join(1.0 if self._store_lost else EXIT_GRACE)

    def error(self) -> LostNodeError:
        """The reported error."""
        report = self.report
        assert report is not None
        end = f"rank {self.rank} stops in round {self.round}" + (f"; {self.checkpoint}" if self.checkpoint else "")
        if report["kind"] == "deadlock":
            return DeadlockError(f"{report['why']} ({end}).")
        verb = "was lost" if report["kind"] == "lost" else f"stopped in round {report['round']}"
        noticed = f" (noticed in round {report['round']})" if report["kind"] == "lost" else ""
        why = report["why"].rstrip(".")
        return LostNodeError(f"rank {report['rank']} {verb}: {why}{noticed}. R{end[1:]}.", report["rank"])

    def _start(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _is_running(self) -> bool:
        """Does the store thread run? It does not if there is only one process, nor in a fork of this process."""
        return bool(self._threads) and self._threads[0].is_alive() and not self.ended.is_set()

    def _on_store_thread(self, do: Callable[[], Any], patience: float | None = None) -> Any:
        """Runs a function on the store thread. Waits for its result, a report or, if given, `patience` seconds."""
        answer: Future[Any] = Future()
        self._jobs.put((do, answer))
        end = None if patience is None else time.monotonic() + patience
        while end is None or time.monotonic() < end:
            if end is None and self.report is not None:
                raise self.error()
            if wait_for([answer], TICK).done:
                return answer.result()
        raise TimeoutError

    # -- the store thread --------------------------------------------------------------------------------------------

    def _run_store_thread(self) -> None:
        """Runs the submitted functions, and publishes a status in between."""
        published = time.monotonic()
        while True:
            due = published + HEARTBEAT_INTERVAL - time.monotonic()
            try:
                job = self._jobs.get(timeout=max(due, 0.0))
            except Empty:
                job = self._publish_and_check, Future()
                published = time.monotonic()
            if job is None:
                return
            do, answer = job
            try:
                found = do()
                self._store_answered = self._awake
                answer.set_result(found)
            except BaseException as error:
                if isinstance(error, dist.DistError):  # there is no second connection
                    self._mark_store_lost()
                answer.set_exception(error)

    def _publish_and_check(self) -> None:
        if self._json is None or self._store_lost or self.ended.is_set():
            return
        wait = self._current_wait()
        self._heartbeat += 1
        self._json.put(f"status/{self.rank}", asdict(self._status(wait)))
        if self.report is None:
            self._check_peers(wait)

    def _announce_exit(self) -> None:
        """Publishes that this process ends. The host of the store waits until the others have ended.

        It waits as long as they send heartbeats, because slower nodes may still do their last steps or evaluate. After
        a report all nodes stop, so then it waits only until they can have read the report.
        """
        if self.report is None:
            self._json.put(f"status/{self.rank}", asdict(self._status(None)) | {"left": True})
        began = time.monotonic()
        beats, seen = dict.fromkeys(self.others, 0), dict.fromkeys(self.others, began)
        while self._hosts_store and time.monotonic() - began < self.timeout:
            statuses, now = self._statuses(), time.monotonic()
            for other, status in statuses.items():
                if status.heartbeat != beats[other]:
                    beats[other], seen[other] = status.heartbeat, now
            ended = self.report is not None or self._json.get(REPORT_KEY) is not None
            since = began if ended else max(seen.values())
            if all(other in statuses and statuses[other].left for other in self.others) or now - since > EXIT_GRACE:
                return
            time.sleep(0.05)

    def _current_wait(self) -> Wait | None:
        """What the training waits for. One of torch's own collectives is found by the stack probe."""
        wait = self._wait
        if wait is None and self._awake - self._last_progress > HEARTBEAT_INTERVAL:
            name = torch_collective(self._training_thread)
            wait = Wait(f"torch.distributed.{name}()", "torch", peers=self.others) if name else None
        return wait

    def _status(self, wait: Wait | None) -> Status:
        rounds, barriers = dict(self.rounds), dict(self._barriers)
        found = Status(self._heartbeat, self._progress, self.round, barriers=barriers, rounds=rounds)
        if wait is not None or self._awake - self._last_progress > HEARTBEAT_INTERVAL:
            found.line = user_line(self._training_thread)
        if wait is not None:
            found.call, found.kind, found.scope = wait.call, wait.kind, wait.scope
            found.number, found.exchange, found.awaited = wait.number, wait.round, wait.awaited
        return found

    def _check_peers(self, wait: Wait | None) -> None:
        """Reads a report of the others. While this node waits, checks the nodes that it waits for."""
        self.report = self.report or self._json.get(REPORT_KEY)
        if self.report is not None or wait is None:
            self._seen = {}
            return None
        statuses = self._statuses()
        mine = self._status(wait)
        for peer in wait.peers:
            status = statuses.get(peer)
            sign = status and (status.progress, status.heartbeat if status.kind else -1)
            still = self._seconds_unchanged(peer, sign)
            if status is None:
                if still > self.timeout:
                    return self._publish_report("lost", peer, self._not_joined())
            elif status.left:
                if mine.waits_for(status) or still > self.timeout:
                    return self._publish_report("lost", peer, self._left_too_early(wait, status))
            elif still > self.timeout:
                why = f"it has made no progress for {self.timeout:g} s{describe_place(status)}"
                return self._publish_report("lost", peer, why)
        statuses = statuses | {self.rank: mine}
        cycle = find_cycle(self.rank, statuses)
        still_there = self._current_wait() is wait and wait.awaited == mine.awaited
        still = self._seconds_unchanged("all", {rank: status.progress for rank, status in statuses.items()})
        all_wait = len(statuses) == self.nodes and all(status.kind or status.left for status in statuses.values())
        if (cycle and still_there) or (all_wait and still > self.timeout):
            why = describe_deadlock(statuses, cycle or sorted(statuses), self.timeout)
            self._publish_report("deadlock", self.rank, why)
        return None

    def _statuses(self) -> dict[int, Status]:
        keys = [f"status/{other}" for other in self.others]
        found = self._json.get_all(keys) or map(self._json.get, keys)
        return {other: Status(**one) for other, one in zip(self.others, found, strict=True) if one is not None}

    def _seconds_unchanged(self, key: Any, sign: Any) -> float:
        """For how long a node's status has been the same: it neither made progress nor waited."""
        if key not in self._seen or self._seen[key][0] != sign:
            self._seen[key] = sign, self._awake
        return self._awake - self._seen[key][1]

    def _left_too_early(self, wait: Wait, status: Status) -> str:
        why = f"it ended its training in round {status.round}, before the others did{UNEQUAL_LOADERS}"
        return f"{why}; {wait.call} must be called by all nodes" if wait.kind == "barrier" else why

    def _publish_report(self, kind: str, rank: int, why: str) -> None:
        """Publishes a report. The first one is valid for all nodes."""
        self.report = self._json.put_if_absent(REPORT_KEY, self._make_report(kind, rank, why))

    def _make_report(self, kind: str, rank: int, why: str) -> dict[str, Any]:
        return {"kind": kind, "rank": rank, "round": self.round, "why": why}

    def _not_joined(self) -> str:
        place = " ".join(f"{name}={os.environ.get(name, '')}" for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"it has not joined for {self.timeout:g} s (is it started, and does {place} reach rank 0 from there?)"

    def _mark_store_lost(self) -> None:
        """The store, on rank 0's machine, does not answer: makes a report for this process only."""
        self._store_lost = True
        why = "the connection to the store on its machine was closed"
        if self._awake - self._store_answered > self.timeout:
            why = f"the store on its machine has not answered for {self.timeout:g} s; is the network to it cut?"
        if self._json is None:
            why = self._not_joined()
        self.report = self.report or self._make_report("lost", 0, why)

    # -- the clock thread --------------------------------------------------------------------------------------------

    def _run_clock_thread(self) -> None:
        last = time.monotonic()
        while not self.ended.wait(TICK):
            now = time.monotonic()
            # A process that was stopped (SIGSTOP, a suspended machine) has received no heartbeats meanwhile. This time
            # must not count against the others.
            self._awake += min(now - last, 1.0)
            last = now
            if self._awake - self._store_answered > self.timeout:
                self._mark_store_lost()
            if self.report is not None:
                self._unblock()

    def _unblock(self) -> None:
        """Makes the training's blocked call fail after a report. If that does not help, ends the process."""
        wait = self._current_wait()
        if wait is None:  # the node computes, and its next step raises the error
            self._given_up = None
        elif self._given_up is None:
            self._given_up = self._awake
            if wait.kind != "barrier":
                others = sorted(self.others, key=lambda rank: rank != self.error().rank)
                self._start(partial(_abort, wait.group, others))
        elif self._awake - self._given_up > ABORT_GRACE:
            error = self.error()
            with suppress(Exception):
                print(f"{PREFIX}{error}", file=sys.stderr, flush=True)
                sys.stdout.flush()
                get_error_handler().record_exception(error)  # torchrun reports it as the cause
            os._exit(EXIT_CODE)

    # -- what a backend's error means ----------------------------------------------------------------------------

    def _diagnose(self, wait: Wait) -> LostNodeError:
        """The lost node: the awaited node, or among the peers one that has ended or publishes no heartbeats.

        If that node stops because of another one, it has reported the other before.
        """
        suspects = wait.peers if wait.awaited is None else (wait.awaited,)
        with suppress(LostNodeError, dist.DistError):  # it was reported meanwhile, or the store is lost
            before = self._on_store_thread(self._heartbeats)
            while self.report is None:
                self._on_store_thread(partial(self._blame, wait, suspects))
                if self.report is None:
                    time.sleep(3 * HEARTBEAT_INTERVAL)
                    now = self._on_store_thread(self._heartbeats)
                    silent = [peer for peer in suspects if now.get(peer) == before.get(peer)]
                    if wait.kind == "join" and not silent:
                        self._on_store_thread(lambda: self._publish_report("deadlock", self.rank, UNREACHABLE))
                    suspects = ((silent or list(suspects))[0],)
        return self.error()

    def _blame(self, wait: Wait, suspects: Sequence[int]) -> None:
        self.report = self.report or self._json.get(REPORT_KEY)
        if self.report is not None:
            return
        statuses = self._statuses()
        left = [peer for peer in suspects if peer in statuses and statuses[peer].left]
        if left:
            self._publish_report("lost", left[0], self._left_too_early(wait, statuses[left[0]]))
        elif len(suspects) == 1:
            self._publish_report("lost", suspects[0], "its connection was closed")

    def _heartbeats(self) -> dict[int, int]:
        return {rank: status.heartbeat for rank, status in self._statuses().items()}


def _abort(group: Any, others: Sequence[int]) -> None:
    """Makes the calls that wait in a group fail.

    gloo cannot be aborted, but it closes a group's connections when one receive times out. This needs an open
    connection, such as that of a hanging node. Some nodes may have ended already, so every node is tried.
    """
    groups = [group] if group is not None else list(dist.distributed_c10d._world.pg_map)  # pyright: ignore
    for one in groups:
        if dist.get_backend(one) != "gloo":
            with suppress(Exception):
                one._get_backend(torch.device("cuda")).abort()
            continue
        for peer in others:
            with suppress(Exception):
                work = dist.irecv(torch.zeros(1), src=peer, tag=1 << 20, group=one)
                if work is not None:
                    work.wait(timedelta(milliseconds=1))
