"""One bad reply in thirty rounds: what becomes of it, and of the run.

`python tests/flower/bad_reply.py` prints the table of docs/federated.md.
"""

import logging
from functools import cache

import numpy as np
import quadratics
from flwr.app import Array, ArrayRecord, Message, RecordDict
from quadratics import CLIENTS, FatefulGrid

import stgt
from stgt.flower import Strategy

ROUNDS, ROUND, CLIENT = 30, 10, 1  # of them, in this one, by this client
METHODS = [stgt.FedAvg(tau=3), stgt.ScaffoldPlus(tau=3), stgt.FedAdam(tau=3)]
WAYS = {"× 10": 10.0, "× −1": -1.0, "× 1e3": 1e3, "× 1e6": 1e6, "× 1e38": 1e38, "NaN": np.nan}


class BadGrid(FatefulGrid):
    """The way that one client's model went in one round is multiplied; `spoil` changes the reply's records if given."""

    def __init__(self, app, factor=1.0, spoil=None, there=range(CLIENTS)):
        super().__init__(app)
        self.factor, self.spoil, self.there = factor, spoil, there

    def get_node_ids(self):
        return [partition + 1 for partition in self.there]

    def _call(self, message):
        reply = super()._call(message)
        told = message.content["stgt"]
        if message.metadata.message_type != "train" or message.metadata.dst_node_id != CLIENT + 1:
            return reply
        if told["round"] != ROUND - 1 or "end" not in reply.content:
            return reply
        if self.spoil is not None:
            return Message(RecordDict(self.spoil(dict(reply.content))), reply_to=message)
        end = {}
        for name, array in reply.content["end"].items():
            start = message.content["view.x"][name].numpy()
            end[name] = Array((start + self.factor * (array.numpy() - start)).astype(start.dtype))
        return Message(RecordDict({**reply.content, "end": ArrayRecord(end)}), reply_to=message)


@cache
def run(method, way):
    """The strategy, and the last model."""
    strategy = Strategy(method, stgt.topology.server(CLIENTS))
    grid = BadGrid(quadratics.app_of(), WAYS[way]) if way else FatefulGrid(quadratics.app_of())
    return strategy, quadratics.start(strategy, grid, ROUNDS)


def named(strategy):
    return [(one.round, absence.client, absence.reason) for one in strategy.history for absence in one.absent]


def cell(method, way):
    strategy, found = run(method, way)
    off = np.abs(found - run(method, "")[1]).max()
    who = "refused, named" if (ROUND, CLIENT, "refused") in named(strategy) else "taken in"
    return f"{who}; {off:.0e} off"


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| its way | " + " | ".join(method.label for method in METHODS) + " |")
    print("|---" * (len(METHODS) + 1) + "|")
    for way in WAYS:
        print(f"| {way} | " + " | ".join(cell(method, way) for method in METHODS) + " |")
