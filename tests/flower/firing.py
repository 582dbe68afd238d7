"""A federation in this process at which is shot: clients die and come back, and replies are lost, late or spoilt."""

import sys
from pathlib import Path

import numpy as np
import quadratics
from flwr.app import Error, Message, RecordDict

from stgt.flower.in_process import InProcessGrid

APP = Path(__file__).with_name("fired_app")
sys.path.insert(0, str(APP))

import fired  # noqa: E402, F401  # for tests, which find it here
from spoils import HARMLESS, SPOILS, is_whole  # noqa: E402

CRASHES = (0, 1, 2, 6, 7, 8)  # Flower's codes for clients that fail
# What may become of a message to a client that is alive, how often, and how the round's absence may name it. A client
# that reports a lost state does so in any case.
FATES = {
    "ok": (0.60, ()),
    "harmless": (0.05, ()),
    "twice": (0.03, ()),
    "spoilt": (0.12, ("refused",)),
    "old": (0.03, ("refused",)),  # its reply to an earlier round comes once more
    "crashed": (0.05, ("crashed",)),
    "unheard": (0.03, ("late",)),
    "lost": (0.05, ("late",)),
    "late": (0.04, ("late",)),
}
DEAD = ("late", "gone")


class GivenGrid(InProcessGrid):
    """In round r the clients `called[r]` are there and no others, and of their replies those of `taken[r]` come."""

    def __init__(self, app, clients: int, called: list[list[int]], taken: list[list[int]]):
        super().__init__(app, clients)
        self.called, self.taken, self.r = called, taken, 0

    def get_node_ids(self):
        return [partition + 1 for partition in self.called[min(self.r, len(self.called) - 1)]]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = [self._call(message) for message in messages]
        if messages and messages[0].metadata.message_type == "train":
            wanted = [partition + 1 for partition in self.taken[self.r]]
            replies = [reply for reply in replies if reply.metadata.src_node_id in wanted]
            self.r += 1
        return replies


class FireGrid(InProcessGrid):
    """Draws from a seed, before each round, who dies, and what becomes of each message.

    The dead count as connected for up to three rounds, as they do with Flower for a minute, and are gone for up to
    three more; every other one of those who come back has lost what it kept. `claimant` is one node more, which claims
    that partition too.
    """

    def __init__(self, app, clients: int, seed: int, claimant: int):
        super().__init__(app, clients)
        context = quadratics.fresh(self.contexts[claimant + 1])
        context.node_id = clients + 1
        self.contexts[clients + 1] = context
        self.draws = np.random.default_rng(seed)
        self.silent: dict[int, int] = {}  # for how many rounds a node will be dead and count as connected,
        self.gone: dict[int, int] = {}  # and not even that
        self.before: dict[int, Message] = {}  # each node's last reply
        self.fates: dict[tuple[int, int], str] = {}  # by round and partition

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.gone or node in self.silent]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self._shoot()
        replies = [self._shot_at(message) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _shoot(self) -> None:
        for node in self.contexts:
            if node in self.silent:
                self._count_down(self.silent, node)
            elif node in self.gone:
                self._count_down(self.gone, node)
                if node not in self.gone and self.draws.random() < 0.5:
                    self.contexts[node] = quadratics.fresh(self.contexts[node])
            elif self.draws.random() < 0.05:
                self.silent[node], self.gone[node] = map(int, self.draws.integers(1, 4, 2))
            elif self.draws.random() < 0.03:
                self.contexts[node] = quadratics.fresh(self.contexts[node])

    @staticmethod
    def _count_down(rounds: dict[int, int], node: int) -> None:
        rounds[node] -= 1
        if not rounds[node]:
            del rounds[node]

    def _shot_at(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if node in self.silent or node in self.gone:
            if kind == "train":
                self._note(message, "dead")
            return Message(Error(code=5, reason="no such node"), reply_to=message) if node not in self.silent else None
        if kind != "train":
            reply = self._call(message)
            return self._any_record_gone(message, reply) if self.draws.random() < 0.1 else reply
        fate = str(self.draws.choice(list(FATES), p=[share for share, _ in FATES.values()]))
        self._note(message, fate)
        return self._met(fate, message, node)

    def _note(self, message: Message, fate: str) -> None:
        partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        self.fates[message.content["stgt"]["round"] + 1, partition] = fate

    def _met(self, fate: str, message: Message, node: int) -> Message | None:
        """The reply as it comes to the server."""
        if fate == "unheard":
            return None
        reply, last = self._call(message), self.before.get(node)
        self.before[node] = reply
        if fate == "twice":
            self._call(message)
        if fate == "old" and last is not None:
            return last
        if fate == "crashed":
            return Message(Error(code=int(self.draws.choice(CRASHES)), reason="it failed"), reply_to=message)
        if fate == "late":
            return Message(Error(code=int(self.draws.integers(3, 5)), reason="not to be had"), reply_to=message)
        if fate in ("spoilt", "harmless"):
            ways = SPOILS if fate == "spoilt" else HARMLESS
            way = ways[str(self.draws.choice(list(ways)))]
            return Message(RecordDict(way(dict(reply.content))), reply_to=message) if is_whole(reply.content) else reply
        return None if fate == "lost" else reply

    def _any_record_gone(self, message: Message, reply: Message) -> Message:
        """To a question or an evaluation, whose records are few."""
        names = sorted(reply.content)
        odd = names[int(self.draws.integers(len(names)))]
        return Message(RecordDict({name: reply.content[name] for name in names if name != odd}), reply_to=message)
