"""Membership that changes during a training: nodes leave, are lost, join, and come back.

torchft provides the parts: its lighthouse, with which the nodes agree on the members (`keeper.py`), and its process
group of gloo, which can be configured again for other members. The optimiser does in `on_change` what the method needs
at a change.

A process group is never repaired. If one message fails at any node, that node closes all of its connections. So the
others notice within milliseconds, and each of them ends its round alone. Before their next exchange all remaining
members meet and make a new group.
"""

from __future__ import annotations

import atexit
import logging
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed import DistError

from stgt._internal.checks import InputError, check_choice, check_count, check_number, first_line, quoted
from stgt.torch.elastic_group import CONNECT_TIMEOUT, PAUSE, ElasticGroup
from stgt.torch.elastic_node import ElasticNode, elastic_node
from stgt.torch.failure_detector import DeadlockError, LostNodeError
from stgt.torch.keeper import AGREEMENT, MEETING, Answer, Keeper, Plan, Record
from stgt.torch.membership import BrokenGroupError, Membership, Operation
from stgt.torch.transfer import TransferError, receive
from stgt.torch.waiting import ForgottenError, start_thread

WATCH_INTERVAL = 0.4  # seconds between two checks of whether another member's group is broken
GRACE = 10.0  # seconds after SIGTERM to find a lighthouse, so that a node leaves in an orderly way
FAREWELL = 3.0  # seconds for the others to learn that this node leaves
TERMINATED = 128 + signal.SIGTERM  # the exit code of a process that SIGTERM ended, as in shells
LATE = 5.0  # seconds for others to find out what this node has found out already
EVENTS = 50  # changes of the members that are kept for `status`

_log = logging.getLogger("stgt")
Result = TypeVar("Result")


class Left(SystemExit):
    """This node has left the training in an orderly way. It ends the script, unless the script catches it."""


class TooFewNodesError(LostNodeError):
    """There are fewer nodes than may train."""


class _SupersededError(Exception):
    """The nodes agreed on other members while these met."""


class ElasticMembership(Membership):
    """The members of an elastic training, and this node's place among them.

    Args:
        node: this process.
        name: of the optimiser, for messages.
        min_nodes: the smallest number of members that may train.
        patience: seconds after which a round ends without nodes that are late; None waits for all.
        tau: "auto", or None; see `DistributedOptimizer`.

    Attributes:
        on_change: called at all members when the members have changed.
        on_request: sends a model to newcomers. It is called while this node waits for enough nodes.
        newcomer: is this node still without the model that the others have?
        seconds_lost: the time for which this node has waited for changes of the members.
        events: the last changes.
    """

    elastic = True

    def __init__(
        self,
        node: ElasticNode,
        name: str = "",
        min_nodes: int = 2,
        patience: float | None = None,
        tau: str | None = None,
    ):
        if node.taken:
            raise ValueError("a second DistributedOptimizer cannot be elastic: train both models by one.")
        node.taken = True
        self.node, self.patience = node, None if patience is None else check_number(patience, "patience", above=0)
        if tau is not None:
            check_choice(tau, "tau", ("auto",))
        self._fits_time = tau == "auto"
        self.min_nodes, self.timeout = check_count(min_nodes, "min_nodes"), node.timeout
        self._name = f" of {name}" if name else ""
        self.members, self.rank, self.nodes, self.epoch, self.round = (node.id,), 0, 1, 0, 0
        self.on_change = lambda: None
        self.on_request = lambda: None
        self.newcomer = False
        self.seconds_lost, self.events = 0.0, deque[dict[str, Any]](maxlen=EVENTS)
        self.wanted: set[tuple[str, int]] = set()  # newcomers that wait for this node's model, with their attempt
        self._given: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._group: ElasticGroup | None = None  # of this epoch
        self._next_group: ElasticGroup | None = None  # the group that is being made
        self._record = Record(address=node.address)  # the fields that change rarely; the next three are the others
        self._progress, self._waits_in, self._step_seconds = 0, "", 0.0
        self._records: dict[str, Record] = {}
        self._plan: Plan | None = None
        self._intact = ""  # text about the last checkpoint
        self._too_few = False
        self._why = ""  # why there is no agreement on the members, from the last answer
        self._blocked_at: float | None = None  # since when the answers give such a reason
        self._broken_by = ""
        self._broken_at: float | None = None
        self._fatal: BaseException | None = None
        self._moved = time.monotonic()  # when the training thread last made progress
        self._still: tuple[Any, float] = ((), time.monotonic())  # the progress of all nodes, and since when
        self.keeper = Keeper(node.lighthouses, node.id, node.secret, self.min_nodes, self._given_record, self._receive)
        self._watched: ElasticGroup | None = None
        self._calls, self._depth = 0, 0  # calls of all members since the round began, and the depth of nested calls
        self._stopped = False
        atexit.register(self.depart)
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            before(kind, error, trace)
            self.depart(quoted(error))

        sys.excepthook = hook

    # -- what the keeper's threads call ----------------------------------------------------------------------------

    def _given_record(self) -> Record | None:
        """This node's record; None if its training thread hangs, so that the others continue without it."""
        record, waiting = self._record, self._waits_in
        silent = time.monotonic() - self._moved
        if waiting and not self.keeper.reached and record.state == "member" and silent > 2 * self.timeout:
            # Without a lighthouse nobody detects that a member hangs, so all would wait for it permanently.
            self.break_group(f"{waiting}: no message for {silent:.0f} s, and there is no lighthouse")
        if not waiting and record.state == "member" and silent > self.timeout:
            return None
        return replace(
            record, round=self.round, progress=self._progress, waiting=waiting, step_seconds=self._step_seconds
        )

    def _set(self, **values: Any) -> None:
        with self._lock:
            self._record = replace(self._record, **values)

    def _receive(self, records: dict[str, Record], answer: Answer) -> None:
        self._records, self._why, self._too_few = records, answer.why, answer.too_few
        self._blocked_at = (self._blocked_at or time.monotonic()) if answer.why else None
        mine = self._record
        if mine.state == "member":
            left = {who: one.leaving for who, one in records.items() if one.leaving and who in mine.members}
            gone = mine.gone | left
            if gone != mine.gone:
                self._set(gone=gone)
            others = [one.run for one in records.values() if one.state == "member"]
            latest = max(
                (one for one in records.values() if one.state == "member"), key=lambda one: (one.epoch, one.run)
            )
            if latest.run != mine.run and mine.run in others:
                self._stop_with(LostNodeError("another run uses this lighthouse: give each run its own."))
            elif self.node.id not in latest.members and latest.epoch > mine.epoch:
                # It was silent for a while, and may wait for an answer in a group that the others have left.
                self.break_group("the others continued without this node")
                if self._plan is not None and self._plan.epoch <= latest.epoch:
                    self._plan = None  # the others have carried it out without this node
            members = sorted(who for who, one in records.items() if one.state == "member" and not one.broken)
            members = members or sorted(who for who, one in records.items() if one.state == "member")
            for number, (who, one) in enumerate(sorted(records.items())):
                asks = one.state == "joining" and not one.leaving and (who, one.attempt) not in self._given
                if asks and members and members[(number + one.attempt) % len(members)] == self.node.id:
                    self.wanted.add((who, one.attempt))
        self._look_for_deadlock(records)
        plan = answer.plan
        if plan is None:
            if mine.state == "member" and not (answer.proposal or answer.why):
                self._plan = None
            return
        if self.node.id not in plan.members and not mine.leaving:
            return  # this node is a newcomer without a model, which also receives the members' agreement
        if mine.state == "member" and plan.epoch <= mine.epoch:
            return  # it was agreed on before this node met others with another plan
        if mine.state == "member" and not mine.broken and plan.round <= self.round:
            # Others cannot continue, a member is lost, or they are past the round: this node may wait for one of them.
            why = "the change came late" if plan.round else "another member's connection was closed"
            self.break_group(f"{self.names(plan.lost)} lost" if plan.lost else why)
        with self._lock:
            self._plan = plan  # only now: otherwise `break_group` could close the group of the next meeting

    def _look_for_deadlock(self, records: dict[str, Record]) -> None:
        """Detects that all members wait and none has made progress: they have made different calls."""
        members = {who: one for who, one in records.items() if one.state == "member"}
        now = time.monotonic()
        sign = tuple(sorted((who, one.progress, one.waiting, one.epoch) for who, one in members.items()))
        if sign != self._still[0]:
            self._still = sign, now
            return
        waits = {who: one.waiting for who, one in members.items()}
        if len(members) < 2 or not all(waits.values()) or any(one.broken or one.proposal for one in members.values()):
            return
        differ = len(set(waits.values())) > 1
        if now - self._still[1] > (min(5.0, self.timeout) if differ else self.timeout):
            words = ", ".join(f"{self.names([who])} waits in {call}" for who, call in sorted(waits.items()))
            self._stop_with(DeadlockError(f"{words}: the nodes wait for one another; all must make the same calls."))

    def _stop_with(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        self.break_group(first_line(error))

    def break_group(self, why: str) -> None:
        """This epoch's group has failed: closes its connections, and informs the other members."""
        with self._lock:
            if self._record.broken or self._record.state != "member":
                return
            self._record = replace(self._record, broken=True)
            self._broken_by, self._broken_at = why, time.monotonic()
            groups = self._group, self._next_group
        for group in groups:
            if group is not None:
                group.close()
        self.keeper.wake()

    def _run_watch(self) -> None:
        """Checks whether a member has reported that its group is broken, or the store's host is lost.

        Only nodes in their local steps need this: in an exchange a broken group is noticed anyway.
        """
        closed, watched = None, None
        while not self._stopped:
            time.sleep(WATCH_INTERVAL)
            group = self._watched
            if group is None:
                continue
            try:
                if closed is None or watched is not group:
                    watched, closed = group, group.watch()
                if not closed():
                    continue
            except RuntimeError:
                pass
            closed = None
            with self._lock:
                self._watched = None if self._watched is group else self._watched
            self.keeper.wake()

    # -- changes of the members, by the training thread --------------------------------------------------------------

    def enter(self) -> None:
        """Waits until this node is one of a new run's first members, or until it finds a run to join."""
        self.keeper.start()
        start_thread(self._run_watch)
        self.keeper.wake()
        end = time.monotonic() + self.timeout
        while True:
            if self._plan is not None and self.node.id in self._plan.members:
                self.regroup()
                if self._record.state == "member":
                    return
            if any(one.state == "member" for who, one in self._records.items() if who != self.node.id):
                self.newcomer = True
                return
            self._check_terminated()
            if time.monotonic() > end:
                why = self.keeper.trouble or self._why or "no lighthouse has answered"
                raise TooFewNodesError(f"no training has begun within {self.timeout:g} s: {why}.")
            time.sleep(0.01)

    def before_exchange(self) -> bool:
        """Carries out a change of the members that is due. False if the others have already ended this round."""
        self._check(broken=False)
        self._check_terminated()
        while True:
            plan, record = self._plan, self._record
            if plan is not None and not plan.members and plan.round <= self.round and not record.broken:
                self.end = self._left()  # all members leave: they end this round, and save it
                return True
            due = record.broken or record.state != "member" or (plan is not None and plan.round <= self.round)
            if due and not self.regroup(exchanging=True):
                return False
            if self.patience is None or self.nodes == 1:
                return True
            with suppress(BrokenGroupError), self._guarded("the agreement on who is late") as group:
                found = group.choose_present(self.round, self.patience, self._check)
                self.round = group.called if found is None else found
                return found is not None

    @property
    def place(self) -> int:
        return self.present.index(self.rank)

    @property
    def present(self) -> tuple[int, ...]:
        """The places of the nodes that take part in this round's exchange."""
        return (0,) if self._group is None else self._group.present

    @property
    def taking_part(self) -> int:
        return len(self.present)

    def local_steps(self, tau: int) -> int:
        others = [one.step_seconds for one in self._records.values() if one.state == "member" and one.step_seconds]
        if not (self._fits_time and self._step_seconds and others):
            return tau
        return max(1, min(tau, int(tau * statistics.median(others) / self._step_seconds + 0.5)))

    def computed(self, seconds: float, steps: int) -> None:
        now = seconds / steps
        self._step_seconds = now if not self._step_seconds else 0.8 * self._step_seconds + 0.2 * now

    def regroup(self, exchanging: bool = False) -> bool:
        """Waits for an agreement on new members, and meets them.

        False if the members that are furthest have already ended the exchange or call in which this node is.
        """
        began = time.monotonic()
        while True:
            plan = self._await_plan(began)
            member = self._record.state == "member" and not self._record.broken
            if plan is None or (member and plan.round > self.round):
                return True  # a newcomer has gone again, so there is no change; or the change is later
            if self.node.id not in plan.members:
                raise self._left()
            try:
                with self._waits(MEETING):
                    return self._gather_members(plan, exchanging)
            except (_SupersededError, LostNodeError) as error:
                if isinstance(error, LostNodeError):
                    raise
            except (RuntimeError, DistError) as error:
                _log.info("the members could not meet, and try again")
                _log.debug("why they could not meet: %s", first_line(error))
                with self._lock:
                    self._plan = None if self._plan is plan else self._plan
                    failed, self._next_group = self._next_group or self._group, None
                if failed is not None:
                    failed.close()
                self._set(tries=self._record.tries + 1, broken=self._record.state == "member")
                self.keeper.wake()

    def _await_plan(self, began: float) -> Plan | None:
        while True:
            self._check(broken=False)
            if self._passed_over():
                self._plan = None
                return None
            if self._plan is not None:
                return self._plan
            if self._record.state == "member" and not self._record.broken:
                return None
            self._check_terminated()
            blocked, waited = self._blocked_for(began), time.monotonic() - began
            if blocked > self.timeout and self._too_few:
                self._set(stopping=True)
                self.keeper.wake()
            # A member that hangs is part of each plan until its timeout has passed, and then another may hang.
            if blocked > self.timeout + (LATE if self._record.stopping else 0.0) or waited > 3 * self.timeout:
                why = self._why or self.keeper.trouble or "an agreed member did not arrive"
                raise TooFewNodesError(
                    f"there was no agreement on the members within {blocked or waited:.0f} s after "
                    f"{self._broken_by}: {why} (round {self.round}{self._intact})."
                )
            if self.wanted:
                self.on_request()
            with self._waits(AGREEMENT):
                time.sleep(PAUSE)

    def _blocked_for(self, began: float) -> float:
        """Seconds since `began` without an agreement on the members: no lighthouse, too few nodes, or no majority."""
        since = self._blocked_at if self.keeper.reached else self.keeper.answered
        return 0.0 if since is None else time.monotonic() - max(since, began)

    def _passed_over(self) -> bool:
        """Have others begun a run without this node, which waits to begin one? Then it has to join their run."""
        begun = [one.members for one in list(self._records.values()) if one.state == "member"]
        return self._record.state == "joining" and bool(begun) and not any(self.node.id in one for one in begun)

    def _gather_members(self, plan: Plan, exchanging: bool) -> bool:
        """Makes a group with the members of a plan, and agrees with them on the round."""
        began = self._broken_at or time.monotonic()

        def superseded() -> bool:
            return self._plan is not plan or self._fatal is not None or self._passed_over()

        group = ElasticGroup(plan.store, plan.key, self.node.id, plan.members, self.timeout)
        end = time.monotonic() + self.timeout + LATE  # by then the lighthouse, if any, leaves out nodes that hang
        group.over = lambda: superseded() or time.monotonic() > end
        with suppress(ForgottenError):
            group.assemble()
        if superseded():
            raise _SupersededError
        if group.over():
            raise RuntimeError("an agreed member did not arrive")
        with self._lock:
            self._next_group = group
        until = time.monotonic() + CONNECT_TIMEOUT.total_seconds()
        group.over = lambda: superseded() or time.monotonic() > until
        group.connect()
        here = [self.round, exchanging, self._calls]
        all_of_them = group.gather_values([here, self.newcomer, self._record.stopping, self.epoch])
        group.over = lambda: False
        furthest = max(place for place, new, _, _ in all_of_them if not new)
        # Some may have met before, for a change that failed later. Every group must have a different number.
        epoch = max(plan.epoch, 1 + max(epoch for _, _, _, epoch in all_of_them))
        self.round = furthest[0]
        # An exchange continues with the nodes that are in it, whatever their round numbers were.
        over = not furthest[1] if exchanging else furthest > here
        with self._lock:
            self._group, self._next_group = group, None
            self.members, self.rank, self.nodes, self.epoch = plan.members, group.rank, group.nodes, epoch
            if self._plan is not None and self._plan.epoch <= epoch:
                self._plan = None  # also another plan for this epoch, agreed on while these met
            self._record = replace(
                self._record,
                state="member",
                run=plan.run,
                epoch=epoch,
                members=plan.members,
                broken=False,
                gone={},
            )
            cause, self._broken_by, self._broken_at = self._broken_by, "", None
        self._watched = group
        self.on_change()
        self.newcomer = False
        self._report(plan, cause, time.monotonic() - began)
        if any(stops for _, _, stops, _ in all_of_them):
            self.end = TooFewNodesError(
                f"{self.nodes} nodes are left, and min_nodes is {self.min_nodes}; waited {self.timeout:g} s for others."
            )
        return not over

    def _report(self, plan: Plan, cause: str, seconds: float) -> None:
        """Adds a line to the log, and an entry to `events`."""
        changes = {"lost": list(plan.lost), "left": [f"{who} ({why})" for who, why in plan.left.items()]}
        changes["joined"] = list(plan.joined)
        words = "; ".join(f"{what} {self.names(who)}" for what, who in changes.items() if who)
        self.seconds_lost += seconds
        self.events.append(
            {"time": time.time(), "epoch": self.epoch, "round": self.round, "members": self.nodes, "cause": cause,
             "seconds": seconds, **changes}
        )  # fmt: skip
        _log.info(
            "epoch %d: %d members from round %d on (%s)%s; it took %.2f s",
            self.epoch, self.nodes, self.round, words or "the same in a new group", f"; {cause}" if cause else "",
            seconds,
        )  # fmt: skip

    def names(self, nodes: Sequence[str]) -> str:
        """The names of nodes, without the suffix that makes their ids unique."""
        return ", ".join(one.partition(":")[0] if " (" not in one else one for one in nodes)

    # -- newcomers ---------------------------------------------------------------------------------------------------

    @property
    def run(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of the run that this node is a member of."""
        return self._record.run

    def asked(self) -> list[tuple[str, int]]:
        found = []
        while self.wanted:
            who, attempt = self.wanted.pop()
            self._given.add((who, attempt))
            if who in self._records:
                found.append((self._records[who].address, attempt))
        return found

    def receive_model(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        began = seen = time.monotonic()

        def alive() -> None:
            nonlocal seen
            self._check()
            self._check_terminated()
            now, limit = time.monotonic(), 2 * self.timeout + LATE  # meanwhile the members may wait for one that hangs
            if any(one.state == "member" for one in self._records.values()):
                seen = now
            gone = now - seen > self.timeout  # a new lighthouse may not have their requests yet
            if gone or now - began > limit:
                why = "they are gone" if gone else f"none has sent a model within {limit:g} s"
                raise LostNodeError(f"this node could not join the members: {why}; start it again.")

        while True:
            attempt = self._record.attempt
            try:
                return receive(self.node.store, attempt, alive)
            except TransferError as error:
                _log.info("this node asks another member for a model: %s", first_line(error))
                self._set(attempt=attempt + 1)
                self.keeper.wake()

    def ready(self, run: int) -> None:
        self._set(state="ready", run=run)
        self.keeper.wake()

    def metrics(self) -> dict[str, float]:
        return {"members": float(self.nodes), "epoch": float(self.epoch), "seconds_lost": self.seconds_lost}

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _left(self) -> Left:
        return Left(0 if self.node.terminated is None else TERMINATED)

    def _check_terminated(self) -> None:
        """Lets this node leave after SIGTERM: at once if it is not a member, or if nobody can agree on its leaving."""
        since = self.node.terminated
        if since is None:
            return
        waited = time.monotonic() - since
        if self._record.state != "member" or waited > self.timeout or (waited > GRACE and not self.keeper.reached):
            raise self._left()
        if not self._record.leaving:
            self.announce("SIGTERM")

    def announce(self, why: str) -> None:
        """Announces that this node will leave: the others agree on the round from which they continue without it."""
        self._set(leaving=why)
        self.keeper.wake()

    def depart(self, why: str = "its training is over") -> None:
        """The end of this process: informs the others, so that they need not detect it."""
        if self._stopped:
            return
        self._stopped = True
        if self._record.state == "member" and self.keeper.reached:
            before, end = self.keeper.answered, time.monotonic() + FAREWELL
            if not self._record.leaving:
                self.announce(why)
            while self.keeper.answered == before and self.keeper.reached and time.monotonic() < end:
                time.sleep(PAUSE)
        self._set(leaving=why)
        self.keeper.stop()
        self._group = None

    def fail(self, error: BaseException) -> None:
        """Informs the others why this node cannot continue."""
        if not isinstance(error, LostNodeError | Left | GeneratorExit):
            group = self._group
            self.depart(quoted(error))
            if group is not None:
                group.close()

    # -- the service of a membership ---------------------------------------------------------------------------------

    def open_group(self) -> None:
        """Does nothing: the group was made when the members met."""

    def progress(self) -> None:
        self._check(broken=False)
        self._check_terminated()
        self._moved, self._progress = time.monotonic(), self._progress + 1

    def begin_round(self, r: int) -> None:
        self.round, self._moved, self._progress, self._calls = r, time.monotonic(), self._progress + 1, 0

    def end_round(self) -> None:
        """Does nothing: no rounds are counted."""

    def saved(self, where: Any) -> None:
        self._intact = f"; the last checkpoint in {where} is intact"

    def together(self, do: Callable[[], Result], missed: Result | None = None) -> Any:
        """A call that all members make. If it fails because one is lost, the remaining members make it again."""
        self._depth += 1
        try:
            while True:
                if self._record.broken and not self.regroup():
                    _log.warning(
                        "the members changed during a call, which the others have ended: it has no result here"
                    )
                    return missed
                with suppress(BrokenGroupError):
                    if self.patience is not None and self._group is not None:
                        with self._guarded("a call of all members") as group:
                            group.call(self.round)
                    return do()
        finally:
            self._depth -= 1
            self._calls += not self._depth

    def barrier(self, call: str, value: Any = None) -> list[Any]:
        with self._guarded(call) as group:
            return group.gather_values(value)

    @contextmanager
    def collective(self, call: str) -> Iterator[None]:
        try:
            yield
        except (LostNodeError, BrokenGroupError, Left):
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def sum(self, value: Tensor) -> Tensor:
        with self._guarded("a sum over the members") as group:
            group.sum(value)
        return value

    def broadcast(self, value: Tensor) -> Tensor:
        with self._guarded("a broadcast") as group:
            group.broadcast(value)
        return value

    def gather(self, value: Tensor) -> list[Tensor]:
        with self._guarded("a gathering") as group:
            return group.gather(value)

    def post(self, operations: Sequence[Operation], peers: tuple[int, ...]) -> list[tuple[int | None, Any]]:
        with self._guarded("an exchange") as group:
            return group.post(operations)

    def wait(self, works: Sequence[tuple[int | None, Any]], peers: tuple[int, ...]) -> None:
        with self._guarded(f"the exchange of round {self.round}{self._name}") as group:
            group.wait([work for _, work in works])

    @contextmanager
    def _guarded(self, call: str) -> Iterator[ElasticGroup]:
        """Inside the block this node communicates: a failure is one of the whole group."""
        self._check()
        assert self._group is not None
        try:
            with self._waits(call):
                yield self._group
        except (RuntimeError, DistError) as error:
            if not (type(error) is RuntimeError or isinstance(error, ForgottenError | DistError)):
                raise
            _log.debug("%s: %s", call, first_line(error))
            self.break_group(f"{call}: a connection was closed")
            self._check()
            raise BrokenGroupError(call) from error

    @contextmanager
    def _waits(self, call: str) -> Iterator[None]:
        """Inside the block the training thread waits for others. This does not mean that it hangs."""
        before, self._waits_in = self._waits_in, call
        try:
            yield
        finally:
            self._moved, self._progress, self._waits_in = time.monotonic(), self._progress + 1, before

    def _check(self, broken: bool = True) -> None:
        if self._fatal is not None:
            raise self._fatal
        if broken and self._record.broken:
            raise BrokenGroupError(self._broken_by)


def make_membership(name: str, min_nodes: int, patience: float | None, tau: str | None) -> Membership:
    """The membership of an optimiser: elastic after init(elastic=True)."""
    node = elastic_node()
    if node is None:
        for what, value, default in (("min_nodes", min_nodes, 2), ("patience", patience, None), ("tau", tau, None)):
            if value != default:
                raise InputError(what, value, "is for elastic training: call init(elastic=True), or leave it out.")
        return Membership(name)
    membership = ElasticMembership(node, name, min_nodes, patience, tau)
    try:
        membership.enter()
    except BaseException:
        membership.depart("it could not join")
        raise
    return membership
