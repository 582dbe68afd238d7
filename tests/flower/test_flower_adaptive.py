"""Adam and Yogi at the server, on Scaffold⁺, written out: the control variates stay right, m and v stay there."""

import numpy as np
import pytest
import quadratics
import torch
from hypothesis import given, settings
from quadratics import CENTRES, CLIENTS, CURVES, LR, OPTIMUM, FatefulGrid, P, RestartGrid
from test_flower_failures import FATES, drawn_fates, run_through

import stgt
from stgt._internal import container
from stgt.flower import Strategy

SAMPLED, TAU, GAMMA_C, BETA = 3, 3, 0.8, 0.25
RATE, BETA_1, BETA_2, EPSILON = 0.1, 0.8, 0.9, 0.1
TOPOLOGY, EVERYBODY = stgt.topology.server(CLIENTS, sampled=SAMPLED), stgt.topology.server(CLIENTS)
PLUS = stgt.ScaffoldPlus(tau=TAU, gamma_c=GAMMA_C, beta=BETA)
OPTIONS = {"lr": RATE, "beta_1": BETA_1, "beta_2": BETA_2, "epsilon": EPSILON}
METHODS = {rule: stgt.Adaptive(PLUS, rule=rule, **OPTIONS) for rule in ("adam", "yogi")}
RULES = pytest.mark.parametrize("rule", METHODS)


def literal(rounds, fates, rule):
    """Scaffold⁺ in plain NumPy whose server steps by Reddi et al., Algorithm 2; returns x, c, own, m and v.

    The model's mean is over those who reply, and the sum of what clients change of c is divided by s as ever.
    """
    x, m, v, c, own = np.zeros(P), np.zeros(P), np.full(P, EPSILON**2), np.zeros(P), np.zeros((CLIENTS, P))
    for r in range(rounds):
        ends = {}
        for i in TOPOLOGY.called(r, 0, range(CLIENTS)):
            y = x.copy()
            for _ in range(TAU):
                y -= LR * (CURVES[i] * (y - CENTRES[i]) + c - own[i])
            if fates[r][i] == "ok":
                ends[i] = y
        if not ends:
            continue
        delta, before = np.mean(list(ends.values()), axis=0) - x, c
        for i, y in ends.items():
            change = BETA * ((x - y) / (LR * TAU) - before)
            own[i] += change
            c = c + GAMMA_C * change / SAMPLED
        m = BETA_1 * m + (1 - BETA_1) * delta
        if rule == "adam":
            v = BETA_2 * v + (1 - BETA_2) * delta**2
        else:
            v = v - (1 - BETA_2) * delta**2 * np.sign(v - delta**2)
        x = x + RATE * m / (np.sqrt(v) + EPSILON)
    return {"x": x, "c": c, "own": own, "m": m, "v": v}


@RULES
def test_replies_lost_at_random_leave_the_algebra_right(rule):
    rounds = 60
    fates = drawn_fates(rounds)
    strategy = Strategy(METHODS[rule], TOPOLOGY)
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: fates[r][i])
    found = quadratics.start(strategy, grid, rounds)
    expected = literal(rounds, fates, rule)
    np.testing.assert_allclose(found, expected["x"], rtol=0, atol=1e-12)
    for field in ("c", "m", "v"):
        np.testing.assert_allclose(quadratics.held(strategy, field), expected[field], rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.own_states(strategy, grid, "own"), expected["own"], rtol=0, atol=1e-12)


@RULES
def test_the_optimum_is_where_it_is_although_replies_are_lost(rule):
    """Of the recursion written out above; the test before shows that Flower computes it."""
    rounds = 800
    np.testing.assert_allclose(literal(rounds, drawn_fates(rounds), rule)["x"], OPTIMUM, rtol=0, atol=1e-6)


@settings(max_examples=15)
@given(fates=FATES)
@RULES
def test_c_is_always_its_multiple_of_the_mean_of_own(rule, fates):
    strategy, grid = run_through(METHODS[rule], fates)
    held = quadratics.held(strategy, "c") if "c" in next(iter(strategy.server_state.views.values())) else np.zeros(P)
    own = quadratics.own_states(strategy, grid, "own")
    np.testing.assert_allclose(held, GAMMA_C * CLIENTS / SAMPLED * own.mean(axis=0), rtol=0, atol=1e-12)


@RULES
def test_m_and_v_are_in_the_checkpoint_and_never_in_a_message(rule, tmp_path):
    strategy = Strategy(METHODS[rule], TOPOLOGY, checkpoint=tmp_path / "server.safetensors")
    grid = FatefulGrid(quadratics.app_of(state_dir=tmp_path / "clients"))
    quadratics.start(strategy, grid, 4)
    arrays, _ = container.read(tmp_path / "server.safetensors", "state of a Flower server")
    for field in ("c", "m", "v"):
        saved = np.concatenate([arrays[f"3.{field}:{name}"].reshape(-1) for name in ("u", "v")])
        np.testing.assert_array_equal(saved, quadratics.held(strategy, field))
    for message in grid.sent + grid.replied:
        assert not any(key.endswith((".m", ".v")) for key in message.content)
    for path in (tmp_path / "clients").iterdir():
        fields = {key.split(":")[0].rsplit(".", 1)[1] for key in container.read(path, "state of a Flower client")[0]}
        assert fields == {"own"}


def test_a_client_that_starts_again_leaves_c_m_and_v_as_they_are(caplog):
    """It is the run in which its reply of that round was lost, to the bit."""
    strategy, grid = Strategy(METHODS["adam"], EVERYBODY), RestartGrid(quadratics.app_of())
    found = quadratics.start(strategy, grid, 8)
    assert caplog.text.count("it restarted without its state") == 1
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r, i) == (RestartGrid.at, 1) else "ok")
    other = Strategy(METHODS["adam"], EVERYBODY)
    np.testing.assert_array_equal(found, quadratics.start(other, lost, 8))
    for field in ("c", "m", "v"):
        np.testing.assert_array_equal(quadratics.held(strategy, field), quadratics.held(other, field))


@RULES
def test_single_precision_stays(rule):
    """Whatever the server computes in, a round hands on what the model is made of."""
    app = quadratics.app_of(lambda partition: quadratics.task(partition, dtype=torch.float32))
    strategy = Strategy(METHODS[rule], TOPOLOGY)
    quadratics.start(strategy, FatefulGrid(app), 3, arrays=quadratics.initial(torch.float32))
    (view,) = strategy.server_state.views.values()
    assert {array.dtype for arrays in view.values() for array in arrays.values()} == {np.dtype(np.float32)}
