"""Noticing when a node is lost, or when nodes wait for one another.

Two threads of each process see to it. The one that talks with the store writes there once a second how far the training
is, what it waits for and where in the script it stands, and reads what the others have written. Whoever waits for a
node that neither moves nor waits for `timeout` seconds, or whose connection has closed, says so in a report that all
others read; they stop with its words. No node is blamed for being waited for by somebody slow, however long the chain
of waiting nodes. Nodes that wait for one another are told at once.

The store may be what is lost, and a call that it does not answer never returns. So no other thread calls it, and the
second thread, which waits for nobody, looks at the clock: a store that is silent for `timeout` seconds is lost. It ends
the process if the training does not come out of a call once a node is given up.
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
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from stgt.torch.notes import Notes
from stgt.torch.status import UNEQUAL, UNREACHED, Status, Wait, circle_of, place_of, who_waits
from stgt.torch.whereabouts import collective_of, line_of

HEARTBEAT_INTERVAL = 1.0  # seconds between two heartbeats
TICK = 0.1  # seconds between two looks at the clock
GRACE = 5.0  # seconds for a call to fail by itself once its node is given up
FAREWELL = 3.0  # seconds for the others to read the last report of a process that ends, or to give a sign of life
EXIT_CODE = 3  # of a process that had to be ended
SAYS = "stgt (a node was lost): "  # how its last words begin
REPORT = "report"


class LostNodeError(RuntimeError):
    """Another node died, failed, hangs or has left."""

    def __init__(self, words: str, rank: int | None = None):
        super().__init__(words)
        self.rank = rank


class DeadlockError(LostNodeError):
    """Nodes wait for one another: they made different calls, or the same in another order."""


class Watch:
    """Sends this process's heartbeats, and looks at those of the nodes it waits for.

    Args:
        rank, nodes: of this process, and how many there are; a world of one is not watched.
        timeout: seconds without a sign of progress after which a node counts as lost.
    """

    def __init__(self, rank: int, nodes: int, timeout: float):
        self.rank, self.nodes, self.timeout = rank, nodes, timeout
        self.others = tuple(other for other in range(nodes) if other != rank)
        self.round = 0
        self.checkpoint = ""  # the last complete one, in words
        self.rounds: dict[str, int] = {}
        self._meetings: dict[str, int] = {}
        self._scopes = 0
        self._awake = 0.0  # seconds for which this process was not stopped
        self._progress, self._moved = 0, 0.0
        self._wait: Wait | None = None
        self._beat = 0
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}  # by node: how far it was, and since when
        self._report: dict[str, Any] | None = None
        self._given_up: float | None = None  # since when the training waits for nothing
        self._store: Any = None
        self._notes: Any = None
        self._keeps_store, self._store_lost = False, False
        self._answered = 0.0  # when the store last did
        self._trainer = threading.get_ident()
        self._ended = threading.Event()
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    # -- called by the training thread -------------------------------------------------------------------------------

    def open(self, connect: Callable[[], tuple[Store, bool]]) -> Store:
        """Begins to watch: has the store opened, and talks with it over a connection of its own."""

        def opened() -> Store:
            self._store, self._keeps_store = connect()  # it ends with the object, and others may still need it
            self._notes = Notes(PrefixStore("watch", self._store).clone())  # pyright: ignore[reportAttributeAccessIssue]
            self._notes.put(f"status/{self.rank}", asdict(self._status(None)))
            return self._store

        self._start(self._talk)
        self._start(self._clock)
        try:
            return self._ask(opened)
        except dist.DistError:
            raise self._stop() from None

    def new_scope(self) -> int:
        """A number for another optimiser."""
        self._scopes += 1
        return self._scopes

    def progress(self, r: int) -> None:
        """Training goes on, in round r; raises what is to be said if a node was lost meanwhile."""
        self.round = r
        self._move()
        if self._report is not None:
            raise self._stop()

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[Wait]:
        """While this node talks with others: a backend's error becomes a LostNodeError with a name."""
        if self._report is not None:
            raise self._stop()
        wait.peers = wait.peers or self.others
        self._wait, self._trainer = wait, threading.get_ident()
        try:
            yield wait
        except RuntimeError as error:
            if isinstance(error, LostNodeError) or not _from_backend(error) or self.nodes == 1:
                raise
            raise self._diagnose(wait) from error
        finally:
            self._wait = None
            self._move()

    def meet(self, scope: int, call: str, said: Any = None, r: int = 0) -> list[Any]:
        """Waits until all nodes have made this call; returns what each of them has said, by rank."""
        if self.nodes == 1:
            return [said]
        number = self._meetings[str(scope)] = self._meetings.get(str(scope), 0) + 1
        keys = [f"meeting/{scope}/{number}/{rank}" for rank in range(self.nodes)]
        with self.waiting(Wait(call, "meeting", scope, number, r)):
            self._ask(lambda: self._notes.put(keys[self.rank], {"call": call, "round": r, "said": said}))
            heard, pause = None, 0.0005
            while heard is None:
                time.sleep(pause)
                pause = min(1.5 * pause, 0.02)
                heard = self._ask(lambda: self._notes.get_all(keys) if self._notes.have(keys) else None)
            for rank, one in enumerate(heard):
                if one["call"] != call:
                    raise DeadlockError(
                        f"rank {self.rank} has called {call} where rank {rank} has called {one['call']}: all nodes "
                        "must make the same calls in the same order."
                    )
            if number > 1:  # all have come to this meeting, so that all have heard the one before
                self._ask(lambda: self._notes.remove(f"meeting/{scope}/{number - 1}/{self.rank}"))
        for rank, one in enumerate(heard):
            if one["round"] != heard[0]["round"]:
                raise ValueError(
                    f"{call} was called after {heard[0]['round']} rounds by rank 0 and after {one['round']} by rank "
                    f"{rank}: give all nodes as many, by a loop over opt.batches(loader)."
                )
        return [one["said"] for one in heard]

    def fail(self, error: BaseException) -> None:
        """This process cannot go on: the others are told why."""
        if not self._talks() or self._report is not None or isinstance(error, LostNodeError):
            return
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}" if first else type(error).__name__
        with suppress(Exception):
            self._ask(lambda: self._tell("failed", self.rank, why), FAREWELL)

    @property
    def ended(self) -> bool:
        """Has this process said that it ends?"""
        return self._ended.is_set()

    def leave(self) -> None:
        """This process ends: others who still wait for it are told so, if it ends in good order."""
        if not self._talks():
            return
        self._ended.set()
        with suppress(Exception):
            if not self._store_lost:
                self._ask(self._say_goodbye, self.timeout + 2 * FAREWELL)
        self._jobs.put(None)
        for thread in self._threads:  # back from torch's own code while Python shuts down, it would abort it
            thread.join(1.0 if self._store_lost else FAREWELL)

    def error(self) -> LostNodeError | None:
        """What is to be said if a node was lost."""
        if self._report is None:
            return None
        told = self._report
        end = f"rank {self.rank} stops in round {self.round}" + (f"; {self.checkpoint}" if self.checkpoint else "")
        if told["kind"] == "deadlock":
            return DeadlockError(f"{told['why']} ({end}).")
        verb = "was lost" if told["kind"] == "lost" else f"stopped in round {told['round']}"
        noticed = f" (noticed in round {told['round']})" if told["kind"] == "lost" else ""
        why = told["why"].rstrip(".")
        return LostNodeError(f"rank {told['rank']} {verb}: {why}{noticed}. R{end[1:]}.", told["rank"])

    def _stop(self) -> LostNodeError:
        found = self.error()
        assert found is not None
        return found

    def _start(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _talks(self) -> bool:
        """Is there somebody to tell, and a thread that does? A fork of this process has none."""
        return bool(self._threads) and self._threads[0].is_alive() and not self.ended

    def _move(self) -> None:
        self._progress += 1
        self._moved = self._awake

    def _ask(self, do: Callable[[], Any], patience: float | None = None) -> Any:
        """Has the thread that talks with the store do it. Waits until a node is given up, or for `patience` seconds."""
        answer: Future[Any] = Future()
        self._jobs.put((do, answer))
        end = None if patience is None else time.monotonic() + patience
        while end is None or time.monotonic() < end:
            if end is None and self._report is not None:
                raise self._stop()
            if wait_for([answer], TICK).done:
                return answer.result()
        raise TimeoutError

    # -- the thread that talks with the store ------------------------------------------------------------------------

    def _talk(self) -> None:
        """Does what it is asked to, and a heartbeat in between."""
        spoken = time.monotonic()
        while True:
            due = spoken + HEARTBEAT_INTERVAL - time.monotonic()
            try:
                job = self._jobs.get(timeout=max(due, 0.0))
            except Empty:
                job = self._speak_and_look, Future()
                spoken = time.monotonic()
            if job is None:
                return
            do, answer = job
            try:
                found = do()
                self._answered = self._awake
                answer.set_result(found)
            except BaseException as error:
                if isinstance(error, dist.DistError):  # it does not come back
                    self._lose_store()
                answer.set_exception(error)

    def _speak_and_look(self) -> None:
        if self._notes is None or self._store_lost or self.ended:
            return
        wait = self._waits_in()
        self._beat += 1
        self._notes.put(f"status/{self.rank}", asdict(self._status(wait)))
        if self._report is None:
            self._look(wait)

    def _say_goodbye(self) -> None:
        """Whoever keeps the store stays until the others have left, as long as they give signs of life.

        Slower nodes still take their last steps, which need nobody, or evaluate. A node that was lost ends all of them,
        so then it stays for a little while only, in which they read the report.
        """
        if self._report is None:
            self._notes.put(f"status/{self.rank}", asdict(self._status(None)) | {"left": True})
        began = time.monotonic()
        beats, seen = dict.fromkeys(self.others, 0), dict.fromkeys(self.others, began)
        while self._keeps_store and time.monotonic() - began < self.timeout:
            statuses, now = self._statuses(), time.monotonic()
            for other, status in statuses.items():
                if status.beat != beats[other]:
                    beats[other], seen[other] = status.beat, now
            ended = self._report is not None or self._notes.have([REPORT])
            since = began if ended else max(seen.values())
            if all(other in statuses and statuses[other].left for other in self.others) or now - since > FAREWELL:
                return
            time.sleep(0.05)

    def _waits_in(self) -> Wait | None:
        """What the training waits in, also if it is a collective of torch's own."""
        wait = self._wait
        if wait is None and self._awake - self._moved > HEARTBEAT_INTERVAL:
            name = collective_of(self._trainer)
            wait = Wait(f"torch.distributed.{name}()", "torch", peers=self.others) if name else None
        return wait

    def _status(self, wait: Wait | None) -> Status:
        rounds, meetings = dict(self.rounds), dict(self._meetings)
        found = Status(self._beat, self._progress, self.round, meetings=meetings, rounds=rounds)
        if wait is not None or self._awake - self._moved > HEARTBEAT_INTERVAL:
            found.line = line_of(self._trainer)
        if wait is not None:
            found.call, found.kind, found.scope = wait.call, wait.kind, wait.scope
            found.number, found.exchange, found.facing = wait.number, wait.round, wait.facing
        return found

    def _look(self, wait: Wait | None) -> None:
        """Reads what others have found out; while this node waits, looks at those it waits for."""
        self._report = self._report or self._notes.get(REPORT)
        if self._report is not None or wait is None:
            self._seen = {}
            return None
        statuses = self._statuses()
        mine = self._status(wait)
        for peer in wait.peers:
            status = statuses.get(peer)
            still = self._still(peer, status)
            if status is None:
                if still > self.timeout:
                    return self._tell("lost", peer, self._not_joined())
            elif status.left:
                if mine.waits_for(status) or still > self.timeout:
                    return self._tell("lost", peer, self._early_end(wait, status))
            elif still > self.timeout:
                return self._tell("lost", peer, f"it has made no progress for {self.timeout:g} s{place_of(status)}")
        everybody = statuses | {self.rank: mine}
        circle = circle_of(self.rank, everybody)
        still_there = self._waits_in() is wait and wait.facing == mine.facing
        if (circle and still_there) or self._all_still(everybody):
            self._tell("deadlock", self.rank, who_waits(everybody, circle or sorted(everybody), self.timeout))
        return None

    def _statuses(self) -> dict[int, Status]:
        found = self._notes.get_all([f"status/{other}" for other in self.others])
        return {other: Status(**one) for other, one in zip(self.others, found, strict=True) if one is not None}

    def _still(self, peer: int, status: Status | None) -> float:
        """For how many seconds it has neither moved nor waited, as far as was seen."""
        now = self._awake
        sign = (-1,) if status is None else (status.progress, status.beat if status.kind else -1)
        if self._seen.get(peer, ((), 0.0))[0] != sign:
            self._seen[peer] = sign, now
        return now - self._seen[peer][1]

    def _all_still(self, everybody: dict[int, Status]) -> bool:
        """Have all nodes waited for longer than the time-out without any of them getting further?"""
        now = self._awake
        sign = tuple(status.progress for _, status in sorted(everybody.items()))
        if self._seen.get(-1, ((), 0.0))[0] != sign:
            self._seen[-1] = sign, now
        waiting = all(status.kind or status.left for status in everybody.values())
        return waiting and len(everybody) == self.nodes and now - self._seen[-1][1] > self.timeout

    def _early_end(self, wait: Wait, status: Status) -> str:
        why = f"it ended its training in round {status.round}, before the others did{UNEQUAL}"
        return f"{why}; {wait.call} must be called by all nodes" if wait.kind == "meeting" else why

    def _tell(self, kind: str, rank: int, why: str) -> None:
        """Reports what was found, unless somebody was faster."""
        self._report = self._notes.put_first(REPORT, self._about(kind, rank, why))

    def _about(self, kind: str, rank: int, why: str) -> dict[str, Any]:
        return {"kind": kind, "rank": rank, "round": self.round, "why": why}

    def _not_joined(self) -> str:
        place = " ".join(f"{name}={os.environ.get(name, '')}" for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"it has not joined for {self.timeout:g} s (is it started, and does {place} reach rank 0 from there?)"

    def _lose_store(self) -> None:
        """The store, which is on rank 0's machine, does not answer any more, and so nobody can be told."""
        self._store_lost = True
        why = "the connection to the store on its machine was closed"
        if self._awake - self._answered > self.timeout:
            why = f"the store on its machine has not answered for {self.timeout:g} s; is the network to it cut?"
        if self._notes is None:
            why = self._not_joined()
        self._report = self._report or self._about("lost", 0, why)

    # -- the thread that looks at the clock --------------------------------------------------------------------------

    def _clock(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(TICK):
            now = time.monotonic()
            self._awake += min(now - last, 1.0)  # who was stopped himself knows nothing of the others meanwhile
            last = now
            if self._awake - self._answered > self.timeout:
                self._lose_store()
            if self._report is not None:
                self._give_up()

    def _give_up(self) -> None:
        """Makes the training's blocked call fail; ends the process if that does not help."""
        wait = self._waits_in()
        if wait is None:  # it computes, and is told at its next step
            self._given_up = None
        elif self._given_up is None:
            self._given_up = self._awake
            if wait.kind != "meeting":
                others = sorted(self.others, key=lambda rank: rank != self._stop().rank)
                self._start(partial(_abort, wait.group, others))
        elif self._awake - self._given_up > GRACE:
            error = self._stop()
            with suppress(Exception):
                print(f"{SAYS}{error}", file=sys.stderr, flush=True)
                sys.stdout.flush()
                get_error_handler().record_exception(error)  # where torchrun looks for the cause
            os._exit(EXIT_CODE)

    # -- what a backend's error means ----------------------------------------------------------------------------

    def _diagnose(self, wait: Wait) -> LostNodeError:
        """Who is gone: the node that was faced, or of those waited for the one that has left or sends no heartbeats.

        A node that stops because of another has reported that one before.
        """
        suspects = wait.peers if wait.facing is None else (wait.facing,)
        with suppress(LostNodeError, dist.DistError):  # somebody has reported it meanwhile, or the store is gone
            before = self._ask(partial(self._beats, suspects))
            while self._report is None:
                self._ask(partial(self._blame, wait, suspects))
                if self._report is None:
                    time.sleep(3 * HEARTBEAT_INTERVAL)
                    now = self._ask(partial(self._beats, suspects))
                    silent = [peer for peer in suspects if now[peer] == before[peer]]
                    if wait.kind == "join" and not silent:
                        self._ask(lambda: self._tell("deadlock", self.rank, UNREACHED))
                    suspects = ((silent or list(suspects))[0],)
        return self._stop()

    def _blame(self, wait: Wait, suspects: Sequence[int]) -> None:
        self._report = self._report or self._notes.get(REPORT)
        for peer in suspects if self._report is None else ():
            status = self._notes.get(f"status/{peer}")
            if status is not None and status["left"]:
                return self._tell("lost", peer, self._early_end(wait, Status(**status)))
        if self._report is None and len(suspects) == 1:
            self._tell("lost", suspects[0], "its connection was closed")
        return None

    def _beats(self, peers: Sequence[int]) -> dict[int, int]:
        found = self._notes.get_all([f"status/{peer}" for peer in peers])
        return {peer: -1 if one is None else one["beat"] for peer, one in zip(peers, found, strict=True)}


def _from_backend(error: RuntimeError) -> bool:
    """Is it about a connection? An error of this process's own, such as one of memory, is not."""
    if isinstance(error, dist.DistError):
        return True
    words = str(error)
    return type(error) is RuntimeError and any(
        sign in words for sign in ("gloo", "Gloo", "NCCL", "onnection", "closure", "Timed out", "timed out", "Socket")
    )


def _abort(group: Any, others: Sequence[int]) -> None:
    """Makes what waits in a group fail: gloo closes its connections on a time-out.

    It takes a connection that is still open, as that of a hanging node is; others may have left already.
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
