"""Noticing when a node is lost, or when nodes wait for one another.

A thread of each process writes once a second into the store how far its training is, what it waits for and where in the
script it stands, and reads what the others have written. Whoever waits for a node that neither moves nor waits for
`timeout` seconds, or whose connection has closed, says so in a report that all others read; they stop with its words.
No node is blamed for being waited for by somebody slow, however long the chain of waiting nodes. Nodes that wait for
one another are told at once. A process that does not come out of a call by that is ended with the same words.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stgt.torch.notes import Notes
from stgt.torch.status import Status, Wait, circle_of, place_of, who_waits
from stgt.torch.whereabouts import collective_of, line_of

HEARTBEAT_INTERVAL = 1.0  # seconds between two heartbeats
GRACE = 10.0  # seconds for a call to fail by itself once its node is given up
EXIT_CODE = 3  # of a process that had to be ended
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
        notes: where; None in a world of one.
        rank, nodes: of this process, and how many there are.
        timeout: seconds without a sign of progress after which a node counts as lost.
        keeps_store: does the store live in this process?
        keeper: the node without which the store cannot be reached.
    """

    def __init__(
        self, notes: Notes | None, rank: int, nodes: int, timeout: float, keeps_store: bool = False, keeper: int = 0
    ):
        self.notes, self.rank, self.nodes, self.timeout = notes, rank, nodes, timeout
        self.keeps_store, self.keeper = keeps_store, keeper
        self.others = tuple(other for other in range(nodes) if other != rank)
        self.round = 0
        self.checkpoint = ""  # the last complete one, in words
        self.rounds: dict[str, int] = {}
        self._meetings: dict[str, int] = {}
        self._scopes = 0
        self._progress, self._moved = 0, time.monotonic()
        self._wait: Wait | None = None
        self._beat = 0
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}  # by node: how far it was, and since when
        self._report: dict[str, Any] | None = None
        self._given_up = 0.0  # when that was known
        self._stopped = threading.Event()
        self._trainer = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="stgt-watch", daemon=True)
        if notes is not None:
            wait = timedelta(seconds=max(5.0, min(timeout, 30.0)))
            self._own, self._others = notes.apart(wait), notes.apart(wait)  # the thread's, the training's
            self._own.put(f"status/{rank}", asdict(self._status(None)))
            self._thread.start()

    # -- called by the training thread -------------------------------------------------------------------------------

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
            if isinstance(error, LostNodeError) or not _from_backend(error):
                raise
            raise self._diagnose(error, wait) from error
        finally:
            self._wait = None
            self._move()

    def meet(self, scope: int, call: str, said: Any = None, r: int = 0) -> list[Any]:
        """Waits until all nodes have made this call; returns what each of them has said, by rank."""
        if self.notes is None:
            return [said]
        number = self._meetings[str(scope)] = self._meetings.get(str(scope), 0) + 1
        keys = [f"meeting/{scope}/{number}/{rank}" for rank in range(self.nodes)]
        with self.waiting(Wait(call, "meeting", scope, number, r)):
            self._others.put(keys[self.rank], {"call": call, "round": r, "said": said})
            heard = self._until_all(keys)
        for rank, one in enumerate(heard):
            if one["call"] != call:
                raise DeadlockError(
                    f"rank {self.rank} has called {call} where rank {rank} has called {one['call']}: all nodes must "
                    "make the same calls in the same order."
                )
        if number > 1:  # all have come to this meeting, so that all have heard the one before
            self._others.remove(f"meeting/{scope}/{number - 1}/{self.rank}")
        for rank, one in enumerate(heard):
            if one["round"] != heard[0]["round"]:
                raise ValueError(
                    f"{call} was called after {heard[0]['round']} rounds by rank 0 and after {one['round']} by rank "
                    f"{rank}: give all nodes as many, such as by opt.batches(loader, rounds)."
                )
        return [one["said"] for one in heard]

    def fail(self, error: BaseException) -> None:
        """This process cannot go on: the others are told why."""
        if self.notes is None or self._report is not None or isinstance(error, LostNodeError):
            return
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}" if first else type(error).__name__
        with suppress(Exception):
            self._report = self._others.put_first(REPORT, self._about("failed", self.rank, why))

    @property
    def ended(self) -> bool:
        """Has this process said that it ends?"""
        return self._stopped.is_set()

    def leave(self) -> None:
        """This process ends: others who still wait for it are told so, if it ends in good order."""
        if self.notes is None or self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(5 * HEARTBEAT_INTERVAL)  # back from the store while Python shuts down, it would abort it
        with suppress(Exception):
            if self._report is None:
                self._own.put(f"status/{self.rank}", asdict(self._status(None)) | {"left": True})
            self._linger()

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

    def _move(self) -> None:
        self._progress += 1
        self._moved = time.monotonic()

    def _until_all(self, keys: list[str]) -> list[Any]:
        """The notes under all of the keys, once they are there; a stranger's count as none."""
        pause = 0.0005
        while True:
            found = self._others.get_all(keys) if self._others.have(keys) else [None]
            if None not in found:
                return found
            if self._report is not None:
                raise self._stop()
            time.sleep(pause)
            pause = min(1.5 * pause, 0.02)

    def _linger(self) -> None:
        """Whoever keeps the store waits a little for the others to read what they need."""
        end = time.monotonic() + 3 * HEARTBEAT_INTERVAL
        keys = [f"status/{other}" for other in self.others]
        while self.keeps_store and time.monotonic() < end:
            if all(one is not None and one["left"] for one in self._own.get_all(keys)):
                return
            time.sleep(0.05)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        unreachable_since: float | None = None
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            try:
                if self._report is None or unreachable_since is None:
                    self._speak_and_look()
                unreachable_since = None
            except Exception:  # the store is out of reach: so is the process that keeps it
                unreachable_since = unreachable_since or time.monotonic()
                if self._report is None and time.monotonic() - unreachable_since >= min(self.timeout, 5.0):
                    why = "the store that it keeps cannot be reached"
                    self._report = self._about("lost", self.keeper, why)
            if self._report is not None:
                self._give_up()

    def _speak_and_look(self) -> None:
        wait = self._waits_in()
        self._beat += 1
        self._own.put(f"status/{self.rank}", asdict(self._status(wait)))
        if self._report is None:
            self._look(wait)

    def _waits_in(self) -> Wait | None:
        """What the training waits in, also if it is a collective of torch's own."""
        wait = self._wait
        if wait is None and time.monotonic() - self._moved > HEARTBEAT_INTERVAL:
            name = collective_of(self._trainer)
            wait = Wait(f"torch.distributed.{name}()", "torch", peers=self.others) if name else None
        return wait

    def _status(self, wait: Wait | None) -> Status:
        rounds, meetings = dict(self.rounds), dict(self._meetings)
        found = Status(self._beat, self._progress, self.round, meetings=meetings, rounds=rounds)
        if wait is not None or time.monotonic() - self._moved > HEARTBEAT_INTERVAL:
            found.line = line_of(self._trainer)
        if wait is not None:
            found.call, found.kind, found.scope = wait.call, wait.kind, wait.scope
            found.number, found.exchange, found.facing = wait.number, wait.round, wait.facing
        return found

    def _look(self, wait: Wait | None) -> None:
        """Reads what others have found out; while this node waits, looks at those it waits for."""
        self._report = self._own.get(REPORT)
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
                    return self._tell("lost", peer, f"it has not joined for {self.timeout:g} s")
            elif status.left:
                if mine.waits_for(status) or still > self.timeout:
                    return self._tell("lost", peer, self._early_end(wait, status))
            elif still > self.timeout:
                return self._tell("lost", peer, f"it has made no progress for {self.timeout:g} s{place_of(status)}")
        everybody = statuses | {self.rank: mine}
        circle = circle_of(self.rank, everybody)
        still_there = self._waits_in() is wait and wait.facing == mine.facing
        if (circle and still_there) or self._all_still(everybody):
            self._tell("deadlock", self.rank, who_waits(everybody, circle or sorted(everybody)))
        return None

    def _statuses(self) -> dict[int, Status]:
        found = self._own.get_all([f"status/{other}" for other in self.others])
        return {other: Status(**one) for other, one in zip(self.others, found, strict=True) if one is not None}

    def _still(self, peer: int, status: Status | None) -> float:
        """For how many seconds it has neither moved nor waited, as far as was seen."""
        now = time.monotonic()
        sign = (-1,) if status is None else (status.progress, status.beat if status.kind else -1)
        if self._seen.get(peer, ((), 0.0))[0] != sign:
            self._seen[peer] = sign, now
        return now - self._seen[peer][1]

    def _all_still(self, everybody: dict[int, Status]) -> bool:
        """Have all nodes waited for longer than the time-out without any of them getting further?"""
        now = time.monotonic()
        sign = tuple(status.progress for _, status in sorted(everybody.items()))
        if self._seen.get(-1, ((), 0.0))[0] != sign:
            self._seen[-1] = sign, now
        waiting = all(status.kind or status.left for status in everybody.values())
        return waiting and len(everybody) == self.nodes and now - self._seen[-1][1] > self.timeout

    def _early_end(self, wait: Wait, status: Status) -> str:
        why = f"it ended its training in round {status.round}, before the others did"
        return f"{why}; {wait.call} must be called by all nodes" if wait.kind == "meeting" else why

    def _tell(self, kind: str, rank: int, why: str) -> None:
        """Reports what was found, unless somebody was faster."""
        self._report = self._own.put_first(REPORT, self._about(kind, rank, why))

    def _about(self, kind: str, rank: int, why: str) -> dict[str, Any]:
        return {"kind": kind, "rank": rank, "round": self.round, "why": why}

    def _give_up(self) -> None:
        """Makes the training's blocked call fail; ends the process if that does not help."""
        wait, now = self._waits_in(), time.monotonic()
        if wait is None:  # it computes, and is told at its next step
            self._given_up = 0.0
            return
        self._given_up = self._given_up or now
        if now - self._given_up > GRACE:
            print(f"stgt: {self.error()}", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)
        if wait.kind != "meeting":
            told = self._report or {}
            _abort(wait.group, sorted(self.others, key=lambda rank: rank != told.get("rank")))

    # -- what a backend's error means ----------------------------------------------------------------------------

    def _diagnose(self, error: RuntimeError, wait: Wait) -> RuntimeError:
        """The LostNodeError behind a backend's error."""
        if self._report is None and self.notes is not None:
            with suppress(Exception):
                self._find_lost_node(wait)
        found = self.error()
        if found is None:
            peers = ", ".join(map(str, wait.peers if wait.facing is None else (wait.facing,)))
            return LostNodeError(f"the connection to rank {peers} was lost in round {self.round} ({error}).")
        if self.keeps_store:
            time.sleep(3 * HEARTBEAT_INTERVAL)  # the others read the report in this process
        return found

    def _find_lost_node(self, wait: Wait) -> None:
        """Who is gone: the node that was faced, or of those waited for the one that has left or sends no heartbeats.

        A node that stops because of another has reported that one before.
        """
        suspects = wait.peers if wait.facing is None else (wait.facing,)
        before = self._beats(suspects)
        while self._report is None:
            self._report = self._others.get(REPORT)
            if self._report is not None:
                return
            for peer in suspects:
                status = self._others.get(f"status/{peer}")
                if status is not None and status["left"]:
                    why = self._early_end(wait, Status(**status))
                    self._report = self._others.put_first(REPORT, self._about("lost", peer, why))
                    return
            if len(suspects) == 1:
                why = "its connection was closed"
                self._report = self._others.put_first(REPORT, self._about("lost", suspects[0], why))
                return
            time.sleep(3 * HEARTBEAT_INTERVAL)
            now = self._beats(suspects)
            silent = [peer for peer in suspects if now[peer] == before[peer]]
            suspects = ((silent or list(suspects))[0],)

    def _beats(self, peers: Sequence[int]) -> dict[int, int]:
        found = self._others.get_all([f"status/{peer}" for peer in peers])
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
