"""Random rounds: second moments against enumeration, against runs, and against closed forms."""

from itertools import combinations, product

import numpy as np
import pytest

import stgt
from catalogue import quadratic
from stgt import theory
from stgt.simulator.instance import validate
from stgt.simulator.job import first_models
from stgt.theory import mean_square
from stgt.theory.laws import ServerLaw
from stgt.theory.mean_square import MeanSquare

PROBLEM = stgt.problems.ridge(n=16, p=4, mu=0.5, noise=0.1)
SERVER = stgt.topology.server(16, sampled=4)
RUNS = {
    "Scaffold": (stgt.Scaffold(gamma=0.1, tau=5), SERVER),
    "Scaffold⁺, γ_c = 1": (stgt.ScaffoldPlus(gamma=0.02, tau=5), SERVER),
    "Scaffold⁺, γ_c = s/n": (stgt.ScaffoldPlus(gamma=0.1, tau=5, gamma_c=0.25), SERVER),
    "FedAvg": (stgt.FedAvg(gamma=0.1, tau=5), SERVER),
    "FedDyn": (stgt.FedDyn(gamma=0.1, tau=5, alpha=0.5), SERVER),
    "FedAvg, outer momentum": (stgt.Outer(stgt.FedAvg(tau=5), gamma=0.1), SERVER),
    "Scaffold, outer momentum": (stgt.Outer(stgt.Scaffold(tau=5, beta=0.5), gamma=0.1), SERVER),
    "ST-GT, server": (stgt.STGT(gamma=0.05, tau=5), SERVER),
    "ST-GT, matchings": (stgt.STGT(gamma=0.05, tau=5), stgt.topology.random_matching(16)),
    "ST-GT, lossy ring": (stgt.STGT(gamma=0.05, tau=5), stgt.topology.unreliable(stgt.topology.ring(16), link=0.3)),
    "adjoint, one-peer at random": (
        stgt.STGT(gamma=0.05, tau=5, adjoint=True),
        stgt.topology.any_of(stgt.topology.one_peer_exponential(16)),
    ),
    "a coin": (stgt.ProxSkip(gamma=0.1, p=0.3), stgt.topology.complete(16)),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.sampled(16)
def test_the_steady_state_is_what_runs_show(name):
    """320 seeds: the predicted residual and consensus error lie in the 99 % intervals of the measured ones."""
    algorithm, topology = RUNS[name]
    exact = theory.steady_state(algorithm, PROBLEM, topology)
    options: dict = {"dtype": "float64", "metrics": ["residual", "consensus"], "x0": PROBLEM.optimum}
    trace = stgt.simulate(algorithm, PROBLEM, topology, 700, range(1000, 1320), **options)
    for metric, value in (("residual", exact.residual), ("consensus", exact.consensus)):
        seen = trace[metric][:, -300:].mean(axis=1)
        assert abs(seen.mean() - value) <= 2.591 * seen.std(ddof=1) / np.sqrt(320) + 1e-15, metric  # Student, 319
    assert (exact.bias > 1e-5) == name.startswith("FedAvg")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.sampled(16)
def test_the_expected_curve_is_the_mean_of_runs(name):
    """4,000 seeds, the first rounds: each within its 99.9 % interval."""
    algorithm, topology = RUNS[name]
    x0 = np.ones(4)
    curve = theory.expected_curve(algorithm, PROBLEM, topology, 6, x0=x0)
    options: dict = {"dtype": "float64", "metrics": ["residual"], "x0": x0}
    runs = stgt.simulate(algorithm, PROBLEM, topology, 6, 4000, **options).residual
    assert curve[0] == pytest.approx(runs[0, 0])
    error = runs.std(axis=0, ddof=1)[1:] / np.sqrt(len(runs))
    assert (np.abs(runs.mean(axis=0) - curve)[1:] < 3.29 * error).all()


METHODS = [
    stgt.Scaffold(gamma=0.1, tau=3, option="I"),
    stgt.ScaffoldPlus(gamma=0.1, tau=5, gamma_g=1.2),
    stgt.FedProx(gamma=0.1, tau=4),
    stgt.FedDyn(gamma=0.1, tau=3, alpha=0.5),
    stgt.DiLoCo(gamma=0.1, tau=3),
    stgt.Outer(stgt.Scaffold(tau=3, option="I"), gamma=0.1, nesterov=False),
    stgt.STGT(gamma=0.1, tau=5),
    stgt.FlexGT(gamma=0.1, tau=2, snapshot="last"),
    stgt.DPSGD(gamma=0.1),
]


@pytest.mark.parametrize(
    ("algorithm", "sampled"),
    [(one, sampled) for one in METHODS for sampled in (1, 2, 4) if sampled > 1 or "x" in one.spec().server_fields],
    ids=lambda given: getattr(given, "label", None),
)
def test_a_server_is_the_mean_over_all_it_may_call(algorithm, sampled):
    """Five workers: E[T Σ Tᵀ] and E[T] over all sets of workers, for both ways of computing them."""
    n = 5
    found = _moments(algorithm, quadratic(n, 2, noise=0.3), stgt.topology.server(n, sampled=sampled))
    phase = found.phases[0]
    sampling = isinstance(phase, mean_square.Sampling)
    law = phase.law if sampling else phase.laws[0][1]
    assert isinstance(law, ServerLaw)
    assert sampling == bool(algorithm.spec().server_fields)
    size, q = law.size, law.rows.shape[1]
    rng = np.random.default_rng(0)
    root, y = rng.normal(size=(n * q, n * q)), rng.normal(size=(n, q, 2))
    calls = [np.isin(np.arange(n), called) for called in combinations(range(n), sampled)]
    maps = [law.called(active, np.eye(n * q).reshape(n, q, -1)).reshape(n * size, -1) for active in calls]
    Y = root @ root.T
    expected = np.mean([T @ Y @ T.T for T in maps], axis=0)
    got = law.second(Y.reshape(n, q, n, q)).reshape(n * size, -1)
    np.testing.assert_allclose(got, expected, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(law.mean(y), np.mean([law.called(a, y) for a in calls], axis=0), atol=1e-12)
    if sampling:  # the shorter way, in coordinates in which a server's vectors stand once
        d = phase.size
        root = rng.normal(size=(d, d))
        copies = np.eye(d)[phase.places.ravel()]  # from them to all nodes' states
        rows = law.rows[:, :, :size]
        steps = [
            (law.called(a, rows @ copies.reshape(n, size, d)).reshape(n * size, d))[_first(phase.places)] for a in calls
        ]
        expected = np.mean([T @ root @ root.T @ T.T for T in steps], axis=0)
        np.testing.assert_allclose(phase.second(root @ root.T), expected, atol=1e-12 * np.abs(expected).max())


GAMMA, TAU, ALPHA, RATE, MU = 0.1, 3, 0.5, 0.7, 0.6


def _averaging(x, held, own, active, steps):
    """FedAvg's mean; `held` and `own` stay."""
    return np.mean([steps(i, x, lambda y: 0.0) for i in active], axis=0), held, own


def _scaffold(x, c, own, active, steps):
    ends = {i: steps(i, x, lambda y, i=i: c - own[i]) for i in active}
    new = {i: own[i] - c + (x - ends[i]) / (TAU * GAMMA) for i in active}
    c = c + sum(new[i] - own[i] for i in active) / len(own)
    return np.mean(list(ends.values()), axis=0), c, np.stack([new.get(i, own[i]) for i in range(len(own))])


def _dynamic(x, H, own, active, steps):
    ends = {i: steps(i, x, lambda y, i=i: ALPHA * (y - x) - own[i]) for i in active}
    H = H - ALPHA * sum(ends[i] - x for i in active) / len(own)
    own = np.stack([own[i] - ALPHA * (ends[i] - x) if i in ends else own[i] for i in range(len(own))])
    return np.mean(list(ends.values()), axis=0) - H / ALPHA, H, own


SERVED = {
    "FedDyn": (stgt.FedDyn(gamma=GAMMA, tau=TAU, alpha=ALPHA), _dynamic, False),
    "FedAvg": (stgt.Outer(stgt.FedAvg(tau=TAU), gamma=GAMMA, lr=RATE, momentum=MU), _averaging, True),
    "Scaffold": (stgt.Outer(stgt.Scaffold(tau=TAU), gamma=GAMMA, lr=RATE, momentum=MU), _scaffold, True),
    "FedDyn, outer": (stgt.Outer(stgt.FedDyn(tau=TAU, alpha=ALPHA), gamma=GAMMA, lr=RATE, momentum=MU), _dynamic, True),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_server_with_a_state_of_its_own_is_the_mean_over_all_draws(name):
    """Four workers, two called: E‖x − x*‖² over all 6³ runs of three rounds, each written out."""
    algorithm, inner, outer = SERVED[name]
    n, problem, server = 4, quadratic(4, 2), stgt.topology.server(4, sampled=2)
    A, b, optimum = problem.data["A"], problem.data["b"], problem.optimum

    def steps(i, x, correction):
        y = x
        for _ in range(TAU):
            y = y - GAMMA * (A[i] @ y - b[i] + correction(y))
        return y

    def errors(calls):
        x, m, held, own = np.ones(2), np.zeros(2), np.zeros(2), np.zeros((n, 2))
        found = [x - optimum]
        for active in calls:
            mixed, held, own = inner(x, held, own, active, steps)
            d = x - mixed
            m = MU * m + d
            x = x - RATE * (d + MU * m) if outer else mixed
            found.append(x - optimum)
        return np.sum(np.square(found), axis=1)

    expected = np.mean([errors(calls) for calls in product(combinations(range(n), 2), repeat=3)], axis=0)
    curve = theory.expected_curve(algorithm, problem, server, 3, x0=np.ones(2))
    np.testing.assert_allclose(curve, expected, rtol=1e-11)


def _first(places):
    """Where each entry of the short state stands first among all nodes' states."""
    return np.unique(places.ravel(), return_index=True)[1]


def _moments(algorithm, problem, topology):
    setting = validate(algorithm, problem, topology)
    return MeanSquare(setting, first_models(None, setting))


def test_a_closed_form():
    """f_i(x) = a x²/2 − b_i x, FedAvg, one step, one of n workers called: x⁺ = (1 − γa)x + γ b_S − γδ, so that
    E(x − x*)² = γ²(Var b + σ²)/(1 − (1 − γa)²) and the mean-square radius is |1 − γa|."""
    a, gamma, variance, b = 2.0, 0.25, 0.3, np.array([0.0, 1.0, 5.0])
    problem = stgt.problems.Quadratic(np.full((3, 1, 1), a), b[:, None], noise=variance)
    asked = stgt.FedAvg(gamma=gamma), problem, stgt.topology.server(3, sampled=1)
    left = 1 - (1 - gamma * a) ** 2
    assert theory.steady_state(*asked).residual == pytest.approx(gamma**2 * (b.var() + variance) / left, rel=1e-9)
    assert theory.spectral_radius(*asked) == pytest.approx(1 - gamma * a, rel=1e-8)
    assert float(theory.largest_stable_stepsize(*asked)) == pytest.approx(2 / a, rel=2e-3)


def test_without_noise_an_exact_method_has_no_error():
    """Scaffold's fixed point is x* whoever is called, and what rounding leaves is not an error below 0."""
    exact = theory.steady_state(stgt.Scaffold(gamma=0.1, tau=2), quadratic(6, 2), stgt.topology.server(6, sampled=2))
    assert 0 <= exact.residual < 1e-25


def test_a_fixed_graph_drawn_at_random_is_itself():
    """`any_of` one matrix: the moments' answers are the affine map's."""
    problem, W = quadratic(6, 2, noise=0.2), stgt.topology.ring(6).matrix(0)
    algorithm = stgt.STGT(gamma=0.1, tau=4)
    fixed = algorithm, problem, stgt.topology.from_matrix(W)
    drawn = algorithm, problem, stgt.topology.any_of([W, W])
    assert theory.spectral_radius(*drawn) == pytest.approx(theory.spectral_radius(*fixed), rel=1e-8)
    one, other = theory.steady_state(*fixed), theory.steady_state(*drawn)
    assert other.residual == pytest.approx(one.residual, rel=1e-8)
    assert other.consensus == pytest.approx(one.consensus, rel=1e-8)
    curves = (theory.expected_curve(*asked, 12, x0=np.ones(2)) for asked in (fixed, drawn))
    np.testing.assert_allclose(next(curves), next(curves), rtol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("topology", [stgt.topology.server(6, sampled=2), stgt.topology.random_matching(6)], ids=str)
def test_the_mean_square_limit_is_where_runs_begin_to_grow(topology):
    """Without noise, the mean over 2,000 seeds of ‖X − X*‖² shrinks at 0.8 times the limit, grows at 1.3 times it."""
    problem = quadratic(6, 2)
    algorithm = stgt.Scaffold(gamma=0.1, tau=3) if topology.has_server else stgt.STGT(gamma=0.1, tau=3)
    limit = float(theory.largest_stable_stepsize(algorithm, problem, topology))
    ends = []
    for times in (0.8, 1.3):
        method = type(algorithm)(gamma=times * limit, tau=3)
        assert (theory.spectral_radius(method, problem, topology) < 1) == (times < 1)
        options: dict = {"dtype": "float64", "metrics": ["residual", "consensus"], "x0": problem.optimum + 1.0}
        trace = stgt.simulate(method, problem, topology, 60, 2000, **options)
        with np.errstate(over="ignore"):
            size = (trace["residual"] + trace["consensus"]).mean(axis=0)
        ends.append(size[60] / size[20])
    assert ends[0] < 0.5
    assert ends[1] > 10


@pytest.mark.thorough
def test_an_estimated_law_says_its_error():
    """A random structure of one's own: the same matchings, but without moments in closed form."""
    pairs = stgt.topology.random_matching(6)
    own = stgt.topology.Topology("own", 6, OwnPairs(6), period=None, degree=1)
    problem, algorithm = quadratic(6, 2, noise=0.2), stgt.STGT(gamma=0.05, tau=3)
    known, drawn = (theory.steady_state(algorithm, problem, one) for one in (pairs, own))
    assert known.residual_error == 0
    assert 0 < drawn.residual_error < 0.2 * drawn.residual
    assert abs(drawn.residual - known.residual) < 5 * drawn.residual_error
    assert theory.check(algorithm, problem, own).basis == "an estimate, from short runs"


class OwnPairs(type(stgt.topology.random_matching(6).structure)):  # pyright: ignore[reportUntypedBaseClass]
    def moments(self, n, phase=0, seed=0, draws=400):
        return super(type(self).__mro__[1], self).moments(n, phase, seed, draws)


def test_bad_input():
    algorithm, problem = stgt.STGT(gamma=0.1, tau=3), quadratic(6, 2)
    matching = stgt.topology.random_matching(6)
    for attempt, words in (
        (
            lambda: theory.spectral_radius(stgt.Scaffold(gamma=0.1, tau=3), problem, stgt.topology.relay(6, sampled=2)),
            "are not independent",
        ),
        (lambda: theory.spectral_radius(stgt.AugDGM(gamma=0.1), problem, matching), "mixes more than once"),
        (
            lambda: theory.spectral_radius(algorithm, quadratic(400, 2), stgt.topology.random_matching(400)),
            "1600 entries",
        ),
        (
            lambda: theory.steady_state(stgt.STGT(gamma=5.0, tau=3), stgt.problems.ridge(6, 2), matching),
            "no steady state",
        ),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")
