"""A node's place at the lighthouse: it sends heartbeats, and agrees with the other nodes on who the members are.

torchft's lighthouse answers all nodes that ask with one list of those that asked, and with what each of them has sent
along (its `Record`). So what a node computes from an answer, all compute alike. A change of members takes two answers:
after the first one all nodes propose the same members, and the second shows that all of them do.
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

HEARTBEAT_INTERVAL = 0.18  # seconds; `stgt lighthouse` takes a node for dead after three of them
POLL_INTERVAL = 2.0  # seconds between two questions to the lighthouse where nothing has happened
WAITING_INTERVAL = 0.5  # seconds between two questions while this node waits for others, or others to join
RETRY_INTERVAL = 0.3  # seconds until a lighthouse that does not answer is asked again
ANSWER_TIMEOUT = timedelta(seconds=20)  # of one question; the lighthouse waits for all nodes that send heartbeats
CONNECT_TIMEOUT = timedelta(seconds=3)
AGREEMENT, MEETING = "the agreement on the members", "the meeting of the members"  # what a node waits for in a change
AHEAD = 2  # rounds between a change that was agreed on and its begin, where all nodes are well

_log = logging.getLogger("stgt")


@dataclass(frozen=True)
class Record:
    """What a node sends along with its question.

    Attributes:
        state: "joining" (it has no model yet), "ready" (it has one) or "member".
        run: a number of the run that it is a member of.
        epoch: of its group.
        members: the ids of that group's members.
        broken: does its group not work any more?
        leaving: why it leaves, or "".
        gone: members that have left in order since the epoch began: their ids, and why.
        stopping: has it waited in vain for `min_nodes`, and ends after a checkpoint?
        round: that it is in.
        exchanging: has it made its local steps of that round?
        progress: grows with each local step and each call that ended.
        waiting: the call in which it waits for other nodes, or "".
        address: of its store.
        attempt: counts the times that it asked for a model.
        tries: counts the meetings of new members that failed at this node.
        step_seconds: of one of its local steps; 0 if it has made none.
        proposal: the change that it has computed from the last answer, or "".
        planned: the key of the change that was agreed on and that it has not forgotten, or "".
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
        """What the others must learn at once."""
        return self.state, self.epoch, self.broken, self.leaving, self.stopping, self.attempt, self.tries


@dataclass(frozen=True)
class Plan:
    """The next members, as all nodes have agreed on.

    Attributes:
        epoch: its number.
        run: the run's.
        members: their ids, in the order of the topology's rows.
        store: the address of the store in which they meet.
        key: of this meeting; no other has the same.
        round: the first that they make together; 0 for at once.
        lost: those that are members no more without having said so.
        left: those that leave, and why.
        joined: those that come.
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
    """What one answer means.

    Attributes:
        proposal: names the change to propose; "" if the members are to stay as they are.
        plan: the change, once all of its members propose it.
        why: the reason why there is none though the members are not complete; "" if they are.
        too_few: are fewer there than may train?
    """

    proposal: str = ""
    plan: Plan | None = None
    why: str = ""
    too_few: bool = False


def majority(stay: Sequence[str], last: Sequence[str]) -> bool:
    """May `stay` go on without the others of `last`? More than half may, and that half which has the first of them.

    So of two parts of a network that was cut, at most one goes on.
    """
    there = set(stay) & set(last)
    return 2 * len(there) > len(last) or (2 * len(there) == len(last) and min(last) in there)


def agree(records: dict[str, Record], stamp: str, min_nodes: int) -> Answer:
    """What follows from an answer; all nodes that receive it compute the same.

    Args:
        records: of the nodes that have asked, by id.
        stamp: of the answer; no other has the same.
        min_nodes: how few members may train.
    """
    members = {who: one for who, one in records.items() if one.state == "member"}
    if members:
        run = max(members.values(), key=lambda one: (one.epoch, one.run)).run
        members = {who: one for who, one in members.items() if one.run == run}
        latest = max(members.values(), key=lambda one: one.epoch)
        leaving = {who: one.leaving for who, one in members.items() if one.leaving}
        # One whom the others went on without comes back once it is out of its old group, where it may hang.
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
        return Answer(proposal)  # all know it: this later answer would set another round
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
    """Two threads: one sends heartbeats, one asks the lighthouse who the members are.

    Args:
        addresses: of the lighthouses, in the order in which they are tried.
        node: this node's id; no other process has the same.
        secret: of the run: records without its signature are left out.
        min_nodes: how few members may train.
        record: gives this node's record, at each question.
        received: is given each answer: the records by id, and what follows from them.
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
        self._joining = True  # is there a node that is no member yet, be it this one?
        self._asked = ""  # the address of the lighthouse that was asked last
        self.reached = ""  # the address of the lighthouse that has answered last; "" while none does
        self.trouble = ""  # why none does
        self.answered = time.monotonic()  # when one did

    def start(self) -> None:
        for run in (self._run_heartbeats, self._run):
            start_thread(run)

    def wake(self) -> None:
        """Something has happened: ask the lighthouse at once."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the threads: from now on this node is not there."""
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
            except Exception:  # the other thread finds out what is the matter
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
                self._wake.set()  # to confirm it, or to send what has changed since the question
            proposal = answer.proposal
            planned = answer.plan.key if answer.plan is not None else planned if proposal else ""
            try:
                self._received(records, answer)
            except Exception:
                _log.exception("the answer of the lighthouse could not be used")

    def _wait_for_news(self) -> None:
        """Waits until something has happened, or it is time to ask again."""
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
                # It waits for nodes that send heartbeats and do not ask, or for more of them.
                self.trouble = f"{address} has not answered for {ANSWER_TIMEOUT.total_seconds():g} s"
                self._client = None
            except Exception as error:
                self.trouble, self._client = f"{address}: {first_line(error)}", None
            else:
                if address != self.reached and self.reached != "":
                    _log.info("the lighthouse is %s now", address)
                elif self.trouble and self.reached == "":
                    _log.info("the lighthouse %s answers again", address)
                self.reached, self.trouble, self.answered = address, "", time.monotonic()
                stamp = f"{quorum.quorum_id}-{quorum.created.seconds}.{quorum.created.nanos:09d}"
                return self._verified(quorum.participants), stamp
        if self.reached:
            _log.warning("the lighthouse does not answer (%s): the members train on, and nobody can join", self.trouble)
        elif not self._warned:
            _log.warning("the lighthouse does not answer (%s): this node goes on asking", self.trouble)
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
        """The records by id, without those of nodes that do not know the secret."""
        found = {}
        for one in participants:
            try:
                text, signature = json.loads(one.data["record"])
                if not hmac.compare_digest(signature, self._signature(one.replica_id, text)):
                    raise ValueError("it does not know the run's secret")
                given = json.loads(text)
                found[one.replica_id] = Record(
                    **given | {"members": tuple(given["members"]), "gone": dict(given["gone"])}
                )
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("%s asks the lighthouse too, and is left out: %s", one.replica_id, first_line(error))
        return found
