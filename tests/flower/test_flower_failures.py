"""Replies that are lost, refused or broken: the server's c and the clients' own state stay in proportion."""

import numpy as np
import pytest
import quadratics
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratics import CENTRES, CLIENTS, CURVES, LR, OPTIMUM, FatefulGrid, P

import stgt
from stgt.flower import Strategy, client_app
from stgt.flower.protocol import to_record

SAMPLED, TAU = 3, 3
TOPOLOGY = stgt.topology.server(CLIENTS, sampled=SAMPLED)
PLUS = stgt.ScaffoldPlus(tau=TAU, gamma_g=0.9, gamma_c=0.8)
SCAFFOLD = stgt.Scaffold(tau=TAU)
RATES = {PLUS: 0.8, SCAFFOLD: SAMPLED / CLIENTS}
GAMMA_G = {PLUS: 0.9, SCAFFOLD: 1.0}


def drawn_fates(rounds, share=0.35, seed=3):
    """What becomes of each reply, by round and partition; "nan" for at most two of those who are called."""
    draws = np.random.default_rng(seed)
    kinds = np.where(draws.random((rounds, CLIENTS)) < share, draws.integers(1, 4, (rounds, CLIENTS)), 0)
    kinds[:, 2:] = np.minimum(kinds[:, 2:], 2)
    return [[("ok", "lost", "error", "nan")[kind] for kind in row] for row in kinds]


def literal(rounds, fates, rate, gamma_g, mistake=None):
    """Scaffold⁺ in plain NumPy with the same losses; returns x, c and own.

    `mistake="own"`: a client changes its own state though its reply is lost. `mistake="c"`: c follows the mean over
    the replies, however many there are.
    """
    x, c, own = np.zeros(P), np.zeros(P), np.zeros((CLIENTS, P))
    for r in range(rounds):
        moves, changes, before = [], [], own.copy()
        for i in TOPOLOGY.called(r, 0, range(CLIENTS)):
            y = x.copy()
            for _ in range(TAU):
                y -= LR * (CURVES[i] * (y - CENTRES[i]) + c - before[i])
            change = (x - y) / (LR * TAU) - c
            if fates[r][i] == "ok":
                moves.append(y - x)
                changes.append(change)
            if fates[r][i] == "ok" or mistake == "own":
                own[i] += change
        if moves:
            x = x + gamma_g * np.mean(moves, axis=0)
            c = c + rate * (np.mean(changes, axis=0) if mistake == "c" else np.sum(changes, axis=0) / SAMPLED)
    return x, c, own


@pytest.mark.parametrize("method", [PLUS, SCAFFOLD], ids=lambda method: method.label)
def test_replies_lost_at_random_leave_the_optimum_where_it_is(method):
    """Rounds without any reply included."""
    rounds = 120
    fates = drawn_fates(rounds)
    assert any("ok" not in [fates[r][i] for i in TOPOLOGY.called(r, 0, range(CLIENTS))] for r in range(rounds))
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: fates[r][i])
    strategy = Strategy(method, TOPOLOGY)
    found = quadratics.start(strategy, grid, rounds)
    x, c, own = literal(rounds, fates, RATES[method], GAMMA_G[method])
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.held(strategy, "c"), c, rtol=0, atol=1e-12)
    np.testing.assert_allclose(quadratics.own_states(strategy, grid, "own"), own, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, OPTIMUM, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mistake", ["own", "c"])
def test_either_mistake_would_be_seen(mistake):
    rounds = 1200
    x, _, _ = literal(rounds, drawn_fates(rounds), RATES[PLUS], GAMMA_G[PLUS], mistake)
    assert np.abs(x - OPTIMUM).max() > 1e-2
    # ... while without a loss both versions are the same method.
    fine = [["ok"] * CLIENTS] * 40
    for one, other in zip(literal(40, fine, 0.8, 0.9), literal(40, fine, 0.8, 0.9, mistake), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-15)


FATES = st.lists(
    st.lists(st.sampled_from(["ok", "ok", "lost", "error", "nan"]), min_size=CLIENTS, max_size=CLIENTS),
    min_size=1,
    max_size=8,
)


def run_through(method, fates):
    """One round for each row of fates; a run of which no round counts, or too many in a row do not, is over."""
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: fates[r][i])
    strategy = Strategy(method, TOPOLOGY, patience=4)
    called = [TOPOLOGY.called(r, 0, range(CLIENTS)) for r in range(len(fates))]
    counts = ["ok" in [row[i] for i in members] for row, members in zip(fates, called, strict=True)]
    if not any(counts) or any(not any(counts[k : k + 4]) for k in range(len(counts) - 3)):
        with pytest.raises(ValueError, match=r"no round counted|4 rounds in a row do not count, as many as patience"):
            quadratics.start(strategy, grid, len(fates))
    else:
        quadratics.start(strategy, grid, len(fates))
    for outcome, members, row in zip(strategy.history, called, fates, strict=False):
        reasons = {"lost": "late", "error": "crashed", "nan": "refused"}
        assert outcome.taken == [i for i in members if row[i] == "ok"]
        assert {one.client: one.reason for one in outcome.absent} == {
            i: reasons[row[i]] for i in members if row[i] != "ok"
        }
    return strategy, grid


@settings(max_examples=20)
@given(fates=FATES)
@pytest.mark.parametrize("method", [PLUS, SCAFFOLD], ids=lambda method: method.label)
def test_c_is_always_its_multiple_of_the_mean_of_own(method, fates):
    strategy, grid = run_through(method, fates)
    c = quadratics.held(strategy, "c") if "c" in next(iter(strategy.server_state.views.values())) else np.zeros(P)
    own = quadratics.own_states(strategy, grid, "own")
    np.testing.assert_allclose(c, RATES[method] * CLIENTS / SAMPLED * own.mean(axis=0), rtol=0, atol=1e-12)


@settings(max_examples=20)
@given(fates=FATES)
def test_the_corrections_of_st_gt_always_sum_to_zero(fates):
    strategy, grid = run_through(stgt.STGT(tau=TAU), fates)
    c = quadratics.own_states(strategy, grid, "c")
    np.testing.assert_allclose(c.sum(axis=0), 0.0, rtol=0, atol=1e-12)


def test_st_gt_converges_although_replies_are_lost():
    rounds = 100
    fates = drawn_fates(rounds)
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: fates[r][i])
    strategy = Strategy(stgt.STGT(tau=TAU), TOPOLOGY)
    found = quadratics.start(strategy, grid, rounds)
    np.testing.assert_allclose(found, OPTIMUM, rtol=0, atol=1e-4)
    assert len(strategy.server_state.views) <= CLIENTS


def test_a_round_with_too_few_replies_leaves_everything_as_it_was(caplog):
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if r >= 2 and i % 2 else "ok")
    strategy = Strategy(PLUS, stgt.topology.server(CLIENTS), min_replies=4)
    two = quadratics.start(Strategy(PLUS, stgt.topology.server(CLIENTS)), FatefulGrid(quadratics.app_of()), 2)
    np.testing.assert_array_equal(quadratics.start(strategy, grid, 4), two)
    assert "round 3 of 4: 0 of 5 clients, " in caplog.text
    assert (
        "left out: 0 refused, 1 late, 2 refused, 3 late, 4 refused; does not count: 3 of at least 4 replies"
        in caplog.text
    )


def test_an_exception_in_one_client_s_code_is_left_out_and_told(caplog):
    def make(partition):
        if partition == 1:
            raise RuntimeError("out of memory")
        return quadratics.task(partition)

    strategy = Strategy(PLUS, stgt.topology.server(CLIENTS))
    found = quadratics.start(strategy, FatefulGrid(quadratics.app_of(make)), 2)
    assert "round 1: client 1 crashed: it failed: RuntimeError: out of memory" in caplog.text
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if i == 1 else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(PLUS, stgt.topology.server(CLIENTS)), lost, 2))


@pytest.mark.parametrize(("patience", "ends"), [(1, 3), (3, 5), (5, 7)])
def test_a_run_in_which_nothing_happens_ends_with_the_reasons(patience, ends):
    """From round 3 on every client crashes."""

    def setup(context, config):
        if config["server-round"] >= 3:
            raise MemoryError("no room")
        return quadratics.task(context.node_config["partition-id"])

    strategy = Strategy(PLUS, TOPOLOGY, patience=patience)
    sentence = (
        rf"^{patience} rounds in a row do not count, as many as patience allows; the last of them is round {ends}: "
        r"0 of at least 1 replies; clients \d, \d, \d crashed: it failed: MemoryError: no room$"
    )
    with pytest.raises(ValueError, match=sentence):
        quadratics.start(strategy, FatefulGrid(client_app(setup)), 50)
    two = quadratics.start(Strategy(PLUS, TOPOLOGY), FatefulGrid(quadratics.app_of()), 2)
    np.testing.assert_array_equal(quadratics.vector(to_record(strategy.server_state.model())), two)


def test_a_run_that_ends_with_lost_rounds_says_so(caplog):
    grid = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if r >= 2 else "ok")
    quadratics.start(Strategy(PLUS, TOPOLOGY), grid, 4)
    assert "the last 2 rounds of the run do not count; the last of them is round 4: 0 of" in caplog.text
