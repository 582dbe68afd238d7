"""One bad reply in thirty rounds: whether it is refused, and how far it moves the last model.

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
FACTORS = {"× 10": 10.0, "× −1": -1.0, "× 1e3": 1e3, "× 1e6": 1e6, "× 1e38": 1e38, "NaN": np.nan}


class BadGrid(FatefulGrid):
    """Multiplies one client's update in one round; `spoil`, if given, changes the reply's records instead."""

    def __init__(self, app, factor=1.0, spoil=None, there=range(CLIENTS)):
        super().__init__(app)
        self.factor, self.spoil, self.there = factor, spoil, there

    def get_node_ids(self):
        return [partition + 1 for partition in self.there]

    def _call(self, message):
        reply = super()._call(message)
        header = message.content["stgt"]
        if message.metadata.message_type != "train" or message.metadata.dst_node_id != CLIENT + 1:
            return reply
        if header["round"] != ROUND - 1 or "end" not in reply.content:
            return reply
        if self.spoil is not None:
            return Message(RecordDict(self.spoil(dict(reply.content))), reply_to=message)
        end = {}
        for name, array in reply.content["end"].items():
            start = message.content["view.x"][name].numpy()
            end[name] = Array((start + self.factor * (array.numpy() - start)).astype(start.dtype))
        return Message(RecordDict({**reply.content, "end": ArrayRecord(end)}), reply_to=message)


@cache
def run(method, factor):
    """The strategy, and the last model."""
    strategy = Strategy(method, stgt.topology.server(CLIENTS))
    grid = BadGrid(quadratics.app_of(), FACTORS[factor]) if factor else FatefulGrid(quadratics.app_of())
    return strategy, quadratics.start(strategy, grid, ROUNDS)


def cell(method, factor):
    strategy, found = run(method, factor)
    off = np.abs(found - run(method, "")[1]).max()
    accepted = CLIENT in strategy.history[ROUND - 1].taken
    return f"{'accepted' if accepted else 'refused'}; {off:.0e} off"


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| its update | " + " | ".join(method.label for method in METHODS) + " |")
    print("|---" * (len(METHODS) + 1) + "|")
    for factor in FACTORS:
        print(f"| {factor} | " + " | ".join(cell(method, factor) for method in METHODS) + " |")
