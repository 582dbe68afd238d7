"""Long runs: adjoint tracking on directed graphs, and rounding in float32."""

import numpy as np
import pytest

import stgt


def test_adjoint_tracking_converges_where_plain_tracking_diverges():
    """The directed ring: near-complete local solves make plain ST-GT's correction follow (I − W)², not ⪰ 0."""
    problem = stgt.problems.ridge(n=16, p=10, mu=0.1, scale="sqrt_p", noise=0.0)
    ring = stgt.topology.ring(16, directed=True)
    plain, adjoint = (
        stgt.simulate(stgt.STGT(gamma=0.1, tau=50, adjoint=flag), problem, ring, 4000, dtype="float64")
        for flag in (False, True)
    )
    assert plain.residual[0, -1] > 1e10
    assert adjoint.residual[0, -1] < 1e-20
    assert adjoint["consensus"][0, -1] < 1e-20
    assert adjoint["sum_c"].max() < 1e-11


@pytest.mark.thorough
def test_proxskip_with_a_coin_wants_a_fixed_graph():
    """What docs/algorithms.md warns of: with p < 1 and sampled workers it diverges, its periodic form converges."""
    problem, server = stgt.problems.ridge(n=6, p=3, mu=0.5, noise=0.0), stgt.topology.server(6, sampled=2)
    coin, periodic = (
        stgt.simulate(stgt.ProxSkip(gamma=0.003, **options), problem, server, 20_000, dtype="float64")
        for options in ({"p": 0.4}, {"tau": 3})
    )
    assert coin.residual[0, -1] > 1e10
    assert periodic.residual[0, -1] < 1e-10


@pytest.mark.parametrize("engine", ["jax", "numpy"])
def test_the_noise_has_the_stated_variance(engine):
    """f_i(x) = a x²/2, one step a round, W = J: x̄⁺ = (1 − γa) x̄ − γ δ̄ with Var δ̄ = σ²/n, so that in the long run
    E x̄² = γσ²/(n a (2 − γa)). Successive x̄² correlate over 1/(1 − (1 − γa)²) rounds."""
    a, gamma, variance, n = 2.0, 0.25, 0.3, 4
    problem = stgt.problems.Quadratic(np.full((n, 1, 1), a), np.zeros((n, 1)), noise=variance)
    rounds, seeds = (2000, 50) if engine == "jax" else (400, 5)
    trace = stgt.simulate(
        stgt.DPSGD(gamma=gamma), problem, stgt.topology.complete(n), rounds, seeds, engine=engine, metrics=["residual"]
    )
    values = trace.residual[:, 50:]
    expected = gamma * variance / (n * a * (2 - gamma * a))
    # x̄ is normal, so Var x̄² = 2 (E x̄²)²; the sum over lags of its correlation (1 − γa)^{2k} makes the effective size.
    q = (1 - gamma * a) ** 2
    effective = values.size * (1 - q) / (1 + q)
    assert abs(values.mean() / expected - 1) < 5 * np.sqrt(2 / effective)


TOPOLOGIES = [
    stgt.topology.exponential(32),
    stgt.topology.ring(32),
    stgt.topology.one_peer_exponential(32),
    stgt.topology.complete(32),
    stgt.topology.server(32, sampled=8),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("kind", [stgt.STGT, stgt.KGT, stgt.FlexGT])
@pytest.mark.sampled(12)
def test_rounding_does_not_add_up(kind, topology):
    """float32, 20,000 rounds with noise: ‖Σ c_i‖ stays below 1e-5 of Σ‖c_i‖."""
    problem = stgt.problems.ridge(n=32, p=10, mu=0.5, noise=0.1)
    trace = stgt.simulate(kind(gamma=0.1, tau=5), problem, topology, 20_000, metrics=["sum_c", "residual"])
    assert trace.x.dtype == np.float32
    size = np.linalg.norm(trace.state["c"][0].astype(np.float64), axis=1).sum()
    assert trace["sum_c"][0].max() < 1e-5 * size
