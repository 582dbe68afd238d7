"""Methods whose server does more than to take the mean: outer momentum (DiLoCo) and FedDyn, each written out."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from quadratics import CENTRES, CLIENTS, CURVES, LR, OPTIMUM, FatefulGrid, P, RestartGrid
from test_flower_failures import FATES, drawn_fates, run_through
from test_flower_privacy import Wide, wide

import stgt
from stgt.flower import Strategy
from stgt.flower.protocol import size_of

SAMPLED, TAU, ALPHA, GAMMA_C, BETA, RATE, MU = 3, 3, 0.5, 0.8, 0.25, 0.7, 0.6
TOPOLOGY, EVERYBODY = stgt.topology.server(CLIENTS, sampled=SAMPLED), stgt.topology.server(CLIENTS)
DYN = stgt.FedDyn(tau=TAU, alpha=ALPHA)
PLUS = stgt.ScaffoldPlus(tau=TAU, gamma_c=GAMMA_C, beta=BETA)
OUTER = stgt.Outer(PLUS, lr=RATE, momentum=MU)
OUTER_DYN = stgt.Outer(DYN, lr=RATE, momentum=MU)
DILOCO = stgt.DiLoCo(tau=TAU)


def literal(rounds, fates, kind, outer):
    """FedDyn or Scaffold⁺ in plain NumPy, with an outer step or without; returns x, H or c, own and m.

    The model's mean is over those who reply, and all sums of what clients change are divided by s or n as ever.
    """
    x, m, held, own = np.zeros(P), np.zeros(P), np.zeros(P), np.zeros((CLIENTS, P))
    for r in range(rounds):
        ends = {}
        for i in TOPOLOGY.called(r, 0, range(CLIENTS)):
            y = x.copy()
            for _ in range(TAU):
                pull = ALPHA * (y - x) - own[i] if kind == "dynamic" else held - own[i]
                y -= LR * (CURVES[i] * (y - CENTRES[i]) + pull)
            if fates[r][i] == "ok":
                ends[i] = y
        if not ends:
            continue
        mixed, before = np.mean(list(ends.values()), axis=0), held
        for i, y in ends.items():
            if kind == "dynamic":
                own[i] -= ALPHA * (y - x)
                held = held - ALPHA * (y - x) / CLIENTS
            else:
                change = BETA * ((x - y) / (LR * TAU) - before)
                own[i] += change
                held = held + GAMMA_C * change / SAMPLED
        if kind == "dynamic":
            mixed = mixed - held / ALPHA
        d = x - mixed
        m = MU * m + d
        x = x - RATE * (d + MU * m) if outer else mixed
    return x, held, own, m


LITERAL = {
    "FedDyn": (DYN, "dynamic", "H", False),
    "Scaffold⁺, outer": (OUTER, "control", "c", True),
    "FedDyn, outer": (OUTER_DYN, "dynamic", "H", True),
}


@pytest.mark.parametrize("name", LITERAL)
@pytest.mark.sampled(2)
def test_replies_lost_at_random_leave_the_algebra_right(name):
    method, kind, field, outer = LITERAL[name]
    rounds = 60
    fates = drawn_fates(rounds)
    strategy, grid = Strategy(method, TOPOLOGY), FatefulGrid(quadratics.app_of(), fate=lambda r, i: fates[r][i])
    found = quadratics.start(strategy, grid, rounds)
    x, held, own, m = literal(rounds, fates, kind, outer)
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.held(strategy, field), held, rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.own_states(strategy, grid, "own"), own, rtol=0, atol=1e-12)
    if outer:
        np.testing.assert_allclose(quadratics.held(strategy, "m"), m, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LITERAL)
def test_the_optimum_is_where_it_is_although_replies_are_lost(name):
    """Of the recursions written out above; the test before shows that Flower computes them."""
    _, kind, _, outer = LITERAL[name]
    rounds = 600
    x, *_ = literal(rounds, drawn_fates(rounds), kind, outer)
    np.testing.assert_allclose(x, OPTIMUM, rtol=0, atol=1e-6)


@settings(max_examples=15)
@given(fates=FATES)
@pytest.mark.parametrize("method", [DYN, OUTER_DYN, OUTER], ids=lambda method: method.label)
@pytest.mark.sampled
def test_what_the_server_holds_is_always_its_multiple_of_the_mean_of_own(method, fates):
    strategy, grid = run_through(method, fates)
    field, rate = ("c", GAMMA_C * CLIENTS / SAMPLED) if method is OUTER else ("H", 1.0)
    there = field in next(iter(strategy.server_state.views.values()))
    held = quadratics.held(strategy, field) if there else np.zeros(P)
    own = quadratics.own_states(strategy, grid, "own")
    np.testing.assert_allclose(held, rate * own.mean(axis=0), rtol=0, atol=1e-12)


# -- what is sent ------------------------------------------------------------------------------------------------------

SENT = [
    stgt.DiLoCo(tau=2), DYN, stgt.Outer(stgt.Scaffold(tau=2)), OUTER, OUTER_DYN, stgt.LED(tau=2), stgt.FedAdam(tau=2),
    stgt.Adaptive(PLUS, rule="yogi"),
]  # fmt: skip


@pytest.mark.parametrize("method", SENT, ids=lambda method: method.label)
def test_what_travels_is_what_the_cost_says(method):
    grid = FatefulGrid(quadratics.app_of(wide), clients=2)
    Strategy(method, stgt.topology.server(2)).start(grid, ArrayRecord(Wide().state_dict()), num_rounds=2)
    model, cost = 4 * sum(value.numel() for value in Wide().parameters()), method.cost()
    assert len(grid.sends()) == 4
    for message, reply in zip(grid.sent, grid.replied, strict=True):
        if message.metadata.message_type == "train" and message.content["stgt"]["round"] == 1:
            assert not {"view.m", "view.v"} & set(message.content)
            assert cost.down * model < size_of(message.content) <= 1.03 * cost.down * model
            assert cost.up * model < size_of(reply.content) <= 1.02 * cost.up * model


def test_diloco_with_adamw_inside():
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    grid = FatefulGrid(quadratics.app_of(lambda partition: quadratics.task(partition, adamw)))
    strategy, seen = Strategy(DILOCO, TOPOLOGY), []

    def look(r, arrays):
        seen.append((quadratics.vector(arrays), quadratics.held(strategy, "m") if r else np.zeros(P)))

    strategy.start(grid, quadratics.initial(), num_rounds=8, evaluate_fn=look)
    for (x, m), (after, momentum) in pairwise(seen):
        # m⁺ = μm + d and x⁺ = x − η(d + μm⁺), whatever the clients' steps were.
        d = momentum - 0.9 * m
        assert np.abs(momentum - m).max() > 1e-4
        np.testing.assert_allclose(after, x - 0.7 * (d + 0.9 * momentum), rtol=0, atol=1e-12)
    assert all(np.isfinite(x).all() for x, _ in seen)
    trained = [reply.content for reply in grid.replied if "end" in reply.content]
    assert len(trained) == 8 * SAMPLED
    assert all("direction" not in content for content in trained)


# -- a client that has lost its state ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [OUTER, OUTER_DYN], ids=lambda method: method.label)
def test_a_client_that_starts_again_leaves_control_variables_and_outer_momentum_as_they_are(method, caplog):
    """It is the run in which its reply of that round was lost, to the bit."""
    strategy, grid = Strategy(method, EVERYBODY), RestartGrid(quadratics.app_of())
    found = quadratics.start(strategy, grid, 8)
    assert caplog.text.count("it restarted without its state") == 1
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r, i) == (RestartGrid.at, 1) else "ok")
    other = Strategy(method, EVERYBODY)
    np.testing.assert_array_equal(found, quadratics.start(other, lost, 8))
    for field in method.spec().server_fields:
        np.testing.assert_array_equal(quadratics.held(strategy, field), quadratics.held(other, field))
    assert np.abs(quadratics.held(strategy, "m")).max() > 1e-3


# -- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [stgt.STGT(tau=2), stgt.LED(tau=2), stgt.FlexGT(tau=2)], ids=lambda one: one.label)
@pytest.mark.parametrize("wrap", [stgt.Outer, stgt.Adaptive])
def test_an_outer_step_at_each_client_is_refused(inside, wrap):
    sentence = (
        r"changes the mixed 'x' at each client before it stores it, which Flower, .* does not support: use one "
        r"whose model is at the server, such as ScaffoldPlus, DiLoCo or Outer\(ScaffoldPlus\(tau=20\)\), or "
    )
    with pytest.raises(ValueError, match=sentence):
        Strategy(wrap(inside), TOPOLOGY)


def test_a_method_that_divides_by_the_stepsize_refuses_adamw_at_the_client():
    app = quadratics.app_of(
        lambda partition: quadratics.task(partition, lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))
    )
    sentence = r"no round counted; .*; clients \d, \d, \d refused: LED takes .* which it is not behind AdamW: use SGD"
    with pytest.raises(ValueError, match=sentence):
        quadratics.start(Strategy(stgt.LED(tau=2), TOPOLOGY), FatefulGrid(app), 1)


def registered(name, **parts):
    """DiLoCo but for the parts given, under a name of its own."""
    made = type(name, (stgt.DiLoCo,), {"label": name, **parts, "__module__": __name__})
    return stgt.register(name=name)(dataclass(frozen=True, kw_only=True)(made))


OWN = {
    "serve": (
        registered("Otherwise", serve=lambda self, state, mixed: {"x": mixed["x"], "m": state["m"]}),
        r"Otherwise's serve and merge compute different values of 'x' from the same mixed values: make them agree\.",
    ),
    "forgets": (
        registered("Forgetful", serve=lambda self, state, mixed: {"x": mixed["x"]}),
        r"Forgetful's serve does not return 'm': return x, m\.",
    ),
    "reads": (
        registered("Curious", correction=lambda self, state, x: state["m"]),
        r"Curious reads state\['m'\] in its local steps, which the server keeps and does not send: exchange it\.",
    ),
}


@pytest.mark.parametrize("fault", OWN)
def test_a_server_s_part_that_is_wrong_is_one_sentence(fault):
    kind, sentence = OWN[fault]
    with pytest.raises(ValueError, match=sentence):
        Strategy(kind(tau=2), TOPOLOGY)
