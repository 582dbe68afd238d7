"""A node's connection to the lighthouse: it sends heartbeats, and the nodes agree on the members.

torchft's lighthouse sends the same list to all nodes that ask it: the nodes that asked, each with its `Record`. So all
nodes compute the same from an answer. A change of the members takes two answers: after the first one all nodes propose
the same members, and the second one shows that all of them do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from stgt._internal.checks import first_line
from stgt.torch.waiting import start_thread

HEARTBEAT_INTERVAL = 0.18  # seconds; a node counts as lost in `stgt lighthouse` when three of them are missing
POLL_INTERVAL = 2.0  # seconds between two requests to the lighthouse if nothing has happened
WAITING_INTERVAL = 0.5  # seconds between two requests while this node waits for others, or others to join
RETRY_INTERVAL = 0.3  # seconds until a lighthouse that does not answer is asked again
ANSWER_TIMEOUT = timedelta(seconds=20)  # of one request; the lighthouse waits for all nodes that send heartbeats
CONNECT_TIMEOUT = timedelta(seconds=3)
AGREEMENT, MEETING = "the agreement on the members", "the meeting of the members"  # what a node waits for in a change
AHEAD = 2  # rounds between the agreement on a change and its start, if no node has failed

_log = logging.getLogger("stgt")


@dataclass(frozen=True)
class Record:
    """What a node sends with its request.

    Attributes:
        state: "joining" (it has no model yet), "ready" (it has one) or "member".
        run: the number of the run that it is a member of.
        epoch: of its group.
        members: the ids of that group's members.
        broken: has its group failed?
        leaving: why it leaves, or "".
        gone: members that have left in an orderly way since the epoch began: their ids, and why.
        stopping: has it waited for `min_nodes` without success, and ends after a checkpoint?
        round: its current round.
        exchanging: has it finished its local steps of that round?
        progress: grows with each local step and each completed call.
        waiting: the call in which it waits for other nodes, or "".
        address: of its store.
        attempt: the number of times that it asked for a model.
        tries: the number of meetings of new members that failed at this node.
        step_seconds: of one of its local steps; 0 if it has made none.
        proposal: the change that it has computed from the last answer, or "".
        planned: the key of the change that was agreed on and that it still remembers, or "".
    """

    state: str = "joining"
    run: int = 0
    epoch: int = 0
    members: tuple[str, ...] = ()
    broken: bool = False
    leaving: str = ""
    gone: dict[str, str] = field(default_factory=dict)
    stopping: bool = False
    round: int = 0
    exchanging: bool = False
    progress: int = 0
    waiting: str = ""
    address: str = ""
    attempt: int = 0
    tries: int = 0
    step_seconds: float = 0.0
    proposal: str = ""
    planned: str = ""

    @property
    def news(self) -> tuple[Any, ...]:
        """The values that the others must receive at once."""
        return self.state, self.epoch, self.broken, self.leaving, self.stopping, self.attempt, self.tries


@dataclass(frozen=True)
class Plan:
    """The next members, as agreed by all nodes.

    Attributes:
        epoch: its number.
        run: the number of the run.
        members: their ids, in the order of the topology's rows.
        store: the address of the store at which they meet.
        key: of this meeting; every meeting has a different one.
        round: the first round that they do together; 0 for at once.
        lost: members that are no longer there and did not announce it.
        left: members that leave, and why.
        joined: new members.
    """

    epoch: int
    run: int
    members: tuple[str, ...]
    store: str
    key: str
    round: int = 0
    lost: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The conclusions from one answer.

    Attributes:
        proposal: identifies the change to propose; "" if the members do not change.
        plan: the change, once all of its members propose it.
        why: why there is no plan although members are missing; "" if none are missing.
        too_few: are there fewer nodes than may train?
    """

    proposal: str = ""
    plan: Plan | None = None
    why: str = ""
    too_few: bool = False


def majority(stay: Sequence[str], last: Sequence[str]) -> bool:
    """May `stay` continue without the others of `last`? More than half may, and so may the half with the first of them.

    So if a network is cut into two parts, at most one of them continues.
    """
    there = set(stay) & set(last)
    return 2 * len(there) > len(last) or (2 * len(there) == len(last) and min(last) in there)


def agree(records: dict[str, Record], stamp: str, min_nodes: int) -> Answer:
    """The conclusions from an answer. All nodes that receive it compute the same.

    Args:
        records: of the nodes that have asked, by id.
        stamp: of the answer; every answer has a different one.
        min_nodes: the smallest number of members that may train.
    """
    members = {who: one for who, one in records.items() if one.state == "member"}
    if members:
        run = max(members.values(), key=lambda one: (one.epoch, one.run)).run
        members = {who: one for who, one in members.items() if one.run == run}
        latest = max(members.values(), key=lambda one: one.epoch)
        leaving = {who: one.leaving for who, one in members.items() if one.leaving}
        # A node that the others left out comes back once it is out of its old group, where it may hang.
        back = {who for who, one in members.items() if one.waiting in (AGREEMENT, MEETING)}
        staying = [who for who in members if who not in leaving and (who in latest.members or who in back)]
        ready = [who for who, one in records.items() if one.state == "ready" and one.run == run and not one.leaving]
        last = latest.members
        found = tuple(sorted([*staying, *ready]))
        whole = all(who in members and members[who].epoch == latest.epoch and not members[who].broken for who in last)
        if whole and found == last:
            return Answer()
        gone = {who: why for one in members.values() for who, why in one.gone.items()} | leaving
        expected = [who for who in last if who not in gone]
        if expected and not majority(staying, expected):
            return Answer(why=f"{len(staying)} of the last {len(expected)} members are there, and not more than half")
        if staying and len(found) < min_nodes and not all(members[who].stopping for who in staying):
            return Answer(why=f"{len(found)} nodes are there, and min_nodes is {min_nodes}", too_few=True)
        taking_part = [*members, *ready]
    else:
        run, leaving, gone, last, whole = 0, {}, {}, (), False
        taking_part = [who for who, one in records.items() if one.state == "joining" and not one.leaving]
        latest = Record(epoch=max((records[who].epoch for who in taking_part), default=0))
        found = tuple(sorted(taking_part))
        if len(found) < min_nodes:
            return Answer(why=f"{len(found)} nodes are there, and min_nodes is {min_nodes}", too_few=True)
    tries = sum(records[who].tries for who in taking_part)
    proposal = json.dumps([latest.epoch + 1, tries, found, sorted(leaving)])
    if any(records[who].proposal != proposal for who in taking_part):
        return Answer(proposal)
    change, here = (hashlib.sha256(words.encode()).hexdigest()[:16] for words in (proposal, stamp))
    planned = {records[who].planned for who in taking_part}
    if len(planned) == 1 and change in min(planned):
        return Answer(proposal)  # all nodes have the plan: a plan from this later answer would have another round
    first = found[0] if found else sorted(taking_part)[0]
    plan = Plan(
        epoch=latest.epoch + 1,
        run=run or int(hashlib.sha256(stamp.encode()).hexdigest()[:12], 16),
        members=found,
        store=records[first].address,
        key=f"{change}-{here}",
        round=max(one.round for one in members.values()) + AHEAD if members and whole else 0,
        lost=tuple(who for who in last if who not in records and who not in gone),
        left={who: why for who, why in gone.items() if who in last},
        joined=tuple(who for who in found if who not in last),
    )
    return Answer(proposal, plan)


class Keeper:
    """Two threads: one sends heartbeats, the other asks the lighthouse for the members.

    Args:
        addresses: of the lighthouses, in the order in which they are tried.
        node: this node's id; every process has a different one.
        secret: of the run: records without its signature are ignored.
        min_nodes: the smallest number of members that may train.
        record: returns this node's record, for each request.
        received: called with each answer: the records by id, and the conclusions from them.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        node: str,
        secret: str,
        min_nodes: int,
        record: Callable[[], Record | None],
        received: Callable[[dict[str, Record], Answer], None],
    ):
        self.addresses, self.node, self.secret, self.min_nodes = list(addresses), node, secret, min_nodes
        self._record, self._received = record, received
        self._wake, self._ended = threading.Event(), threading.Event()
        self._client: Any = None
        self._warned = False
        self._joining = True  # is any node, including this one, not a member yet?
        self._asked = ""  # the address of the lighthouse that was asked last
        self.reached = ""  # the address of the lighthouse that answered last; "" while none answers
        self.trouble = ""  # why no lighthouse answers
        self.answered = time.monotonic()  # time of the last answer

    def start(self) -> None:
        for run in (self._run_heartbeats, self._run):
            start_thread(run)

    def wake(self) -> None:
        """Something has happened: the lighthouse is asked at once."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the threads: the other nodes then no longer see this node."""
        self._ended.set()
        self._wake.set()

    def _run_heartbeats(self) -> None:
        client, address = None, ""
        while not self._ended.wait(HEARTBEAT_INTERVAL):
            if self._record() is None or not self._asked:
                continue
            try:
                if client is None or address != self._asked:
                    address, client = self._asked, self._connect(self._asked)
                client.heartbeat(self.node, timeout=CONNECT_TIMEOUT)
            except Exception:  # the other thread finds the cause
                client = None

    def _run(self) -> None:
        proposal, planned = "", ""
        while not self._ended.is_set():
            self._wait_for_news()
            self._wake.clear()
            record = self._record()
            if self._ended.is_set() or record is None:
                continue
            found = self._ask(replace(record, proposal=proposal, planned=planned))
            if found is None:
                if not self._ended.is_set():
                    time.sleep(RETRY_INTERVAL)
                    self._wake.set()
                continue
            records, stamp = found
            self._joining = any(one.state != "member" for one in records.values())
            answer = agree(records, stamp, self.min_nodes)
            now = self._record()
            if answer.proposal != proposal or (now is not None and now.news != record.news):
                self._wake.set()  # to confirm it, or to send what has changed since the request
            proposal = answer.proposal
            planned = answer.plan.key if answer.plan is not None else planned if proposal else ""
            try:
                self._received(records, answer)
            except Exception:
                _log.exception("the answer of the lighthouse could not be used")

    def _wait_for_news(self) -> None:
        """Waits until something has happened, or until the next request is due."""
        end = time.monotonic() + POLL_INTERVAL
        while not self._wake.wait(WAITING_INTERVAL) and time.monotonic() < end:
            record = self._record()
            if record is None or record.waiting or self._joining:
                return

    def _ask(self, record: Record) -> tuple[dict[str, Record], str] | None:
        """The records of all nodes that have asked, and the answer's stamp; None if no lighthouse answers."""
        for address in [self.reached, *self.addresses] if self.reached else self.addresses:
            try:
                if self._client is None or address != self._asked:
                    self._client, self._asked = self._connect(address), address
                quorum = self._client.quorum(
                    self.node, ANSWER_TIMEOUT, step=record.round, data={"record": self._signed(record)}
                )
            except TimeoutError:
                # The lighthouse waits for nodes that send heartbeats and do not ask, or for more nodes.
                self.trouble = f"{address} has not answered for {ANSWER_TIMEOUT.total_seconds():g} s"
                self._client = None
            except Exception as error:
                self.trouble, self._client = f"{address}: {first_line(error)}", None
            else:
                if address != self.reached and self.reached != "":
                    _log.info("the lighthouse is now %s", address)
                elif self.trouble and self.reached == "":
                    _log.info("the lighthouse %s answers again", address)
                self.reached, self.trouble, self.answered = address, "", time.monotonic()
                stamp = f"{quorum.quorum_id}-{quorum.created.seconds}.{quorum.created.nanos:09d}"
                return self._verified(quorum.participants), stamp
        if self.reached:
            _log.warning("the lighthouse does not answer (%s): members continue, but no node can join", self.trouble)
        elif not self._warned:
            _log.warning("the lighthouse does not answer (%s): this node continues to ask it", self.trouble)
        self.reached, self._warned = "", True
        return None

    def _connect(self, address: str) -> Any:
        from torchft.coordination import LighthouseClient

        return LighthouseClient(address, CONNECT_TIMEOUT)

    def _signed(self, record: Record) -> str:
        text = json.dumps(asdict(record))
        return json.dumps([text, self._signature(self.node, text)])

    def _signature(self, node: str, text: str) -> str:
        return hmac.new(self.secret.encode(), f"{node} {text}".encode(), hashlib.sha256).hexdigest()

    def _verified(self, participants: Sequence[Any]) -> dict[str, Record]:
        """The records by id, without those of nodes that do not have the secret."""
        found = {}
        for one in participants:
            try:
                text, signature = json.loads(one.data["record"])
                if not hmac.compare_digest(signature, self._signature(one.replica_id, text)):
                    raise ValueError("it does not have the run's secret")
                given = json.loads(text)
                found[one.replica_id] = Record(
                    **given | {"members": tuple(given["members"]), "gone": dict(given["gone"])}
                )
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("%s asks the lighthouse too, but is ignored: %s", one.replica_id, first_line(error))
        return found
