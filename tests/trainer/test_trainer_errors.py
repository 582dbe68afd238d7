"""Mistakes: every node gets one sentence that says what to do."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from literal import NODES, assert_same
from scenarios_use import Quadratic, data

import catalogue
import stgt
from stgt.algorithms.calls import Checked
from stgt.torch import DistributedOptimizer

MISTAKES = {
    "gamma": "gamma=0.1: leave it out of ST-GT; here it is the optimiser's lr.",
    "name": "topology='rign'",
    "more": "topology='grid' needs more than a name",
    "nodes": "topology has 5 nodes, but 8 processes run",
    "LUGT": "LU-GT exchanges twice a round, which the trainer does not support: use STGT, ",
    "AugDGM": "Aug-DGM exchanges twice a round, which the trainer does not support: use STGT, ",
    "GTSAGA": "GT-SAGA needs the oracle SAGA, which the trainer does not support: use STGT, ",
    "Scaffold": "takes an additional gradient at a round's start, which the trainer does not support: use STGT, ",
    "mixing_steps": "FlexGT (first) mixes 2 times a round, which the trainer does not support: use STGT, ",
    "LED AdamW": "LED uses (start − end)/(lr·tau) as the mean of the gradients, which it is not with AdamW",
    "ProxSkip AdamW": "ProxSkip uses (start − end)/(lr·tau) as the mean of the gradients, which it is not with AdamW",
    "LED momentum 1": "LED divides by lr (1 − dampening)/(1 − momentum), and SGD has momentum=1",
    "GTAdam momentum": "GTAdam computes its own step from the gradients, and would discard that of SGD",
    "Outer LED AdamW": "LED + outer momentum uses (start − end)/(lr·tau)",
    "DiLoCo sampled": "DiLoCo keeps 'm' at the server and does not send it, which the trainer",
    "Outer sampled": "Scaffold⁺ + outer momentum keeps 'm' at the server",
    "row": "needs doubly stochastic W_r",
    "class": "give an instance",
    "LBFGS": "optimizer is LBFGS",
    "maximize": "optimizer has maximize=True",
    "optimizer": "give a torch.optim.Optimizer",
    "dtype": "message_dtype='int8'",
    "buffers": "buffers='mean'",
    "sparse": "sparse=False",
    "integers": "only real floating-point ones are trained",
    "model differs": "model differs between rank 0 and rank 3: give all nodes the same.",
    "algorithm differs": "algorithm differs between rank 0 and rank 3",
    "topology differs": "topology differs between rank 0 and rank 3",
    "weights differ": "weights differs between rank 0 and rank 3",
    "early differs": "early differs between rank 0 and rank 3",
    "optimizer differs": "optimizer differs between rank 0 and rank 3",
    "seed differs": "seed differs between rank 0 and rank 3",
    "tau of ProxSkip": "algorithm differs between rank 0 and rank 3",
    "warm missing": "call opt.warm_start() after the first backward()",
    "warm extra": "warm_start() means nothing to ST-GT",
    "end first": "end_round() was called before the round's first step",
    "rate 0": "lr=0 for a whole round",
    "momentum later": "the SGD has momentum now",
    "moved": "a parameter was moved or converted",
    "frozen later": "a parameter was frozen later",
    "unfrozen later": "a frozen parameter is trained now",
    "group later": "a parameter group cannot be added later",
    "empty loader": "has no batches",
    "one empty loader": "the loader of rank 3 has no batches",
    "endless loader": "the loader of rank 3 has no length: give opt.batches(loader, rounds=…).",
    "early FlexGT": "cannot send half of its message",
    "early ATC": "cannot send half of its message",
    "early FedAvg": "cannot send half of its message",
    "early AdamW": "early=True needs plain SGD",
}


@pytest.mark.parametrize("kind", list(MISTAKES))
def test_mistakes(world, kind):
    for answer in world.ask("mistake", kind=kind):
        words = answer["error"]
        assert MISTAKES[kind] in words
        assert words.endswith((".", "?"))
        assert "\n" not in words


def test_methods_that_divide_by_the_stepsize():
    """By their equations: c ← c + β(h − W h)/(γτ) and its kin, also inside others; GTAdam only multiplies by γ."""
    found = {name for name, method in catalogue.instances().items() if Checked(method).divides()}
    assert found == {"LED", "ExactDiffusion", "EXTRA", "ProxSkip", "ProxSkip-periodic", "Outer-LED", "Adaptive-LED"}


def test_a_method_that_cannot_be_tried_on_numbers_is_taken_to_divide():
    @dataclass(frozen=True, kw_only=True)
    class Clipped(stgt.LED):
        def merge(self, state, local, mixed):
            found = super().merge(state, local, mixed)
            return {**found, "c": found["c"].clip(-1, 1)}

    assert Checked(Clipped()).divides()


def test_without_a_process_group():
    base = torch.optim.SGD(Quadratic().parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"call stgt\.torch\.init\(\) before"):
        DistributedOptimizer(base, stgt.STGT(tau=2), "ring")


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", ["KGT", "Scaffold"])
def test_warm_starts(world, name, decay):
    """Literally: KGT's c_i = mean g − g_i; Scaffold's own_i = g_i and c = mean g, of the loss with its decay."""
    A, B = (np.stack([part.numpy() for part in parts]) for parts in zip(*map(data, range(NODES)), strict=True))
    A = A + decay
    x = np.tile(np.array([0.0] * 4 + [1.0] * 2), (NODES, 1))
    g = A * x - B
    own, c = g.copy(), np.tile(g.mean(axis=0), (NODES, 1))
    graph = stgt.topology.server(NODES, sampled=4) if name == "Scaffold" else stgt.topology.ring(NODES)
    correction = c - own
    for r in range(3):
        end, z = x.copy(), 0.0
        for _ in range(2):
            y = A * end - B + correction
            end, z = end - 0.1 * y, z + y / 2
        if name == "KGT":
            W = graph.matrix(r)
            x, correction = W @ end, correction - z + W @ z
            continue
        works = graph.active(r)
        new = own - c + z  # option II: c_i⁺ = c_i − c + mean of (g + c − c_i)
        x = np.tile(end[works].mean(axis=0), (NODES, 1))
        c, own = c + 0.5 * (new - own)[works].mean(axis=0), np.where(works[:, None], new, own)
        correction = c - own
    found = world.run("warm", name=name, rounds=3, decay=decay)
    if name == "KGT":
        assert_same(found, {"x": x, "c": correction})
        return
    assert_same(found, {"own": own})
    told = graph.active(2) | graph.active(3)
    assert_same([node for node, fresh in zip(found, told, strict=True) if fresh], {"x": x[told], "c": c[told]})
