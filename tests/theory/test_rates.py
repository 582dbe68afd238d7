"""Stepsizes, guarantees and Table 1 against numbers worked out by hand."""

import math

import numpy as np
import pytest

import stgt
from catalogue import logistic, quadratic
from stgt import theory
from test_structures import PAIRS

K = theory.Constants(L=4.0, mu=0.5, sigma2=0.3, n=8, tau=5, rho=0.36, sampled=2, samples=50)
START = theory.Start(residual=2.0, gap=3.0, consensus=0.0, tracking=12.0)


def test_stepsizes_by_hand():
    one, two = theory.stepsize(K), theory.stepsize(K, theorem=2)
    assert one.limit == pytest.approx(0.64**2 / (439 * 20))
    assert one.binding == "Lyapunov function"
    assert one.conditions["consensus (Lemma 2)"] == pytest.approx(0.64 / (11 * 0.6 * 20))
    assert one.words.endswith(".")
    assert two.conditions == pytest.approx({"descent": 0.64 / 3560, "consensus and tracking": 0.64**2 / (625 * 12)})
    assert two.limit == pytest.approx(0.64**2 / 7500)
    everywhere = theory.Constants(L=4.0, n=8, tau=5, rho=0.0)
    assert theory.stepsize(everywhere, theorem=2).limit == pytest.approx(1 / (178 * 20))
    assert theory.stepsize(everywhere, theorem=2).binding == "descent"


def test_guarantees_by_hand():
    gamma, h = 1e-5, 0.64
    bound = theory.theorem1(K, gamma)
    assert bound.factor == pytest.approx(1 - 0.5 * 1e-5 * 5 / 2)
    noise = 2 * gamma**2 * 5 * 0.3 / 8 + gamma**3 * 25 * 4 * 0.3 * (5 + 240 * 0.36 / h + 24892 / h**3)
    assert bound.noise == pytest.approx(noise)
    assert bound.floor == pytest.approx(noise / (0.5 * 1e-5 * 5 / 2))
    assert bound.c_x == pytest.approx(80 * gamma * 5 * 4 / (8 * h))
    assert bound.c_y == pytest.approx(3556 * (gamma * 5) ** 3 * 4 / (8 * h**3))
    there = theory.theorem2(K, gamma, 1000, theory.Start(None, 3.0, 0.5, 12.0))
    assert there.terms == pytest.approx(
        {
            "initial gap": 2.1 * 3 / (gamma * 5 * 1000),
            "initial tracking": 12 / (800 * 8 * 1000),
            "initial consensus": 13 * 16 * 0.5 / (h * 8 * 1000),
            "noise, centralised": 2.1 * gamma * 4 * 0.3 / 8,
            "noise, topology": gamma**2 * 5 * 16 * 0.3 * (2 + 38 * 0.36 / h + 130 / h + 1770 * 0.36 / h**3),
        }
    )


@pytest.mark.parametrize("epsilon", [1.0, 1e-2, 1e-4])
def test_promised_rounds_keep_their_promise(epsilon):
    promise = theory.promised_rounds(epsilon, K, START)
    assert promise.guarantee.floor <= epsilon / 2 * (1 + 1e-9)
    assert promise.guarantee.after(promise.rounds, START) <= epsilon
    largest = theory.stepsize(K).limit
    assert promise.gamma == pytest.approx(largest) or promise.guarantee.floor == pytest.approx(epsilon / 2)
    assert promise.guarantee.factor ** (promise.rounds - 1) * promise.guarantee.lyapunov(START) > epsilon / 2
    assert theory.promised_rounds(1e6, K, START).rounds == 0
    still = theory.Constants(L=4.0, mu=0.5, n=8, tau=5, rho=0.36)
    assert theory.promised_rounds(epsilon, still, START).gamma == pytest.approx(largest)


@pytest.mark.parametrize(
    ("algorithm", "convex", "printed", "expected"),
    [
        ("STGT", True, False, {"topology": 4 / (0.64**2 * 0.5), "noise, centralised": 0.3 / (0.25 * 8 * 5 * 0.01),
                               "noise, topology": math.sqrt(4 * 0.3 / (0.125 * 0.64**3 * 5 * 0.01))}),
        ("FlexGT", True, False, {"topology": 4 / (0.64**2 * 0.5), "noise, centralised": 0.06 / (0.25 * 8 * 0.01),
                                 "noise, topology": math.sqrt(1.2) / math.sqrt(0.125 * 0.64**3 * 0.01)}),
        ("Scaffold", True, False, {"conditioning": 8.0, "sampling": 4.0,
                                   "noise, centralised": 0.3 / (0.25 * 5 * 8 * 0.01) * 4}),
        ("Scaffold", False, True, {"noise, centralised": 0.3 / (5 * 1e-4 * 8) * 4, "sampling": 100 * 4 ** (2 / 3)}),
        ("Scaffold", False, False, {"noise, centralised": 12 * 0.3 / (5 * 1e-4 * 8) * 4,
                                    "sampling": 1200 * 4 ** (2 / 3)}),
        ("KGT", False, True, {"topology": 400 / 0.64**2, "noise, centralised": 1.2 / (5 * 8 * 1e-4),
                              "noise, topology": 4 * math.sqrt(0.3) / (0.64**2 * math.sqrt(5e-6))}),
        ("STGT", False, True, {"topology": 400 / 0.64**2, "noise, centralised": 1.2 / (8 * 5 * 1e-4),
                               "noise, topology": 4 * math.sqrt(0.06) / math.sqrt(0.64**3 * 1e-6),
                               "start": 12 / 8 / 3 / 0.01}),
        ("STGT", False, False, {"topology": 1200 / 0.64**2, "noise, centralised": 3.6 / (8 * 5 * 1e-4),
                                "noise, topology": 12 * math.sqrt(0.06) / math.sqrt(0.64**3 * 1e-6),
                                "start": 12 / 8 / 0.01}),
        ("GTSAGA", True, True, {"samples": 50.0, "topology": 8 / 0.64**2}),
        ("GTSVRG", True, False, {"samples": 50.0, "topology": 64 / 0.64**2}),
    ],
)  # fmt: skip
def test_table_1_by_hand(algorithm, convex, printed, expected):
    """epsilon = 0.01, L = 4, μ = 0.5, σ² = 0.3, n = 8, τ = 5, ρ = 0.36, s = 2, m = 50, f − f* = 3, ‖Υ_0‖² = 12."""
    found = theory.table1_rounds(0.01, K, algorithm, convex, start=START, as_printed=printed)
    assert found.terms == pytest.approx(expected)
    assert found.total == pytest.approx(max(expected.values()) if "samples" in expected else sum(expected.values()))
    assert found.dominant == max(expected, key=expected.get)
    assert found.dominant in found.words
    assert found.words.endswith(".")


def test_rounds_takes_the_constants_from_the_objects():
    problem, graph = stgt.problems.ridge(n=8, p=3, mu=0.5, noise=0.1), stgt.topology.ring(8)
    k, first = theory.constants(problem, graph, 5), theory.start(problem, [1.0, 0.0, 2.0])
    assert theory.rounds(stgt.STGT(tau=5), problem, graph, 0.01) == theory.table1_rounds(0.01, k, "STGT")
    found = theory.rounds(stgt.KGT(tau=5), problem, graph, 0.01, convex=False, x0=[1.0, 0.0, 2.0], as_printed=True)
    assert found == theory.table1_rounds(0.01, k, "KGT", False, start=first, as_printed=True)
    louder = theory.rounds(stgt.STGT(tau=5), problem, graph, 0.01, sigma2=4 * k.sigma2, L=2 * k.L, mu=0.25, rho=0.3)
    other = theory.constants(problem, graph, 5, sigma2=4 * k.sigma2, L=2 * k.L, mu=0.25, rho=0.3)
    assert louder == theory.table1_rounds(0.01, other, "STGT")
    server = theory.rounds(stgt.Scaffold(tau=5), problem, stgt.topology.server(8, 2), 0.01)
    assert server.terms["sampling"] == 8 / 2
    data = logistic(4)  # minibatches, of which the variance-reduced methods have no noise
    assert theory.rounds(stgt.GTSAGA(), data, stgt.topology.ring(4), 0.01).terms["samples"] == data.counts.max()


def test_how_table_1_scales():
    def terms(algorithm, convex=True, **changed):
        k = theory.Constants(**{**K.__dict__, **changed})
        return theory.table1_rounds(0.01, k, algorithm, convex, start=START).terms

    def ratio(name, *arguments, **changed):
        return terms(*arguments, **changed)[name] / terms(*arguments)[name]

    for convex in (True, False):
        assert ratio("noise, centralised", "STGT", convex, tau=10) == pytest.approx(1 / 2)
        assert ratio("noise, topology", "STGT", convex, tau=10) == pytest.approx(1 / math.sqrt(2))
        assert ratio("topology", "STGT", convex, tau=10) == 1  # erratum 7
        assert ratio("noise, centralised", "STGT", convex, n=16) == pytest.approx(1 / 2)
    assert ratio("noise, centralised", "FlexGT", tau=10) == pytest.approx(1 / 2)  # erratum 7
    assert ratio("noise, topology", "FlexGT", tau=10) == 1
    assert ratio("noise, centralised", "Scaffold", sampled=4) == pytest.approx(1 / 2)
    far = {"rho": 1 - 0.64 / 4}
    assert ratio("noise, topology", "STGT", False, **far) == pytest.approx(4**1.5)
    assert ratio("noise, topology", "KGT", False, **far) == pytest.approx(4**2)


def test_constants_of_a_problem():
    problem = stgt.problems.ridge(n=8, p=3, mu=0.5, noise=0.1)
    k = theory.constants(problem, stgt.topology.ring(8), 5)
    assert (k.L, k.mu, k.n, k.tau) == (problem.L, 0.5, 8, 5)
    assert k.sigma2 == pytest.approx(0.3)
    assert k.rho == pytest.approx(theory.rho(stgt.topology.ring(8)))
    assert theory.constants(problem, stgt.topology.server(8, 2), 5).sampled == 2
    assert theory.constants(logistic(4), stgt.topology.ring(4), 1, sigma2=1).samples == logistic(4).counts.max()
    first = theory.start(problem, [1.0, 0.0, 2.0])
    mean = problem.gradients(np.array([1.0, 0.0, 2.0]))
    assert first.residual == pytest.approx(((np.array([1.0, 0.0, 2.0]) - problem.optimum) ** 2).sum())
    assert first.tracking == pytest.approx(((mean - mean.mean(axis=0)) ** 2).sum())
    trace = stgt.simulate(stgt.STGT(gamma=0.1), problem, stgt.topology.ring(8), 1, x0=[1, 0, 2], dtype="float64")
    for name in ("residual", "consensus", "tracking"):
        assert getattr(first, name) == pytest.approx(trace[name][0, 0], abs=1e-12)
    assert first.gap == pytest.approx(trace["loss"][0, 0])
    own = theory.start(problem, np.arange(24.0).reshape(8, 3))
    assert own.consensus == pytest.approx(3 * 9 * 42)  # three columns of 9 · Σ (i − 3.5)²


def test_an_estimated_rho_counts_at_the_upper_end_of_its_interval():
    k = theory.constants(quadratic(PAIRS.n, 2, noise=0.1), PAIRS, 3)
    found = theory.rho(PAIRS)
    assert k.rho == found.high > found > found.low


# Half-way averages along each of two digits in turn, W = (I + M)/2 with M² = M: 1 in each round for waves it does not
# see, and ½ for what it does, so that the period leaves (½)² of a wave that one round sees.
SLOW = stgt.topology.sequence([(np.eye(4) + stgt.topology.hypercuboid(4).matrix(r)) / 2 for r in range(2)])


def test_bad_input():
    problem, ring = quadratic(4, 2, noise=0.1), stgt.topology.ring(4)
    k = theory.constants(problem, ring, 3)
    one_way = stgt.topology.from_matrix([[0.7, 0.3], [0.1, 0.9]], row_stochastic=True)
    flat = theory.Constants(L=1.0, mu=-0.5, n=4, tau=1, rho=0.1)
    assert flat.mu is None
    for attempt, words in (
        (lambda: theory.stepsize(theory.constants(problem, stgt.topology.hypercuboid(4), 3)), "hypercuboid.*ρ = 1"),
        (lambda: theory.stepsize(theory.constants(problem, SLOW, 3)), r"a whole period leaves 0\.25"),
        (lambda: theory.stepsize(theory.constants(problem, stgt.topology.server(4, 2), 3)), "skip rounds"),
        (lambda: theory.stepsize(theory.constants(problem, stgt.topology.relay(4, 2), 3)), "not doubly stochastic"),
        (lambda: theory.stepsize(theory.constants(problem, stgt.topology.one_peer_exponential(4), 3)), "period_contr"),
        (lambda: theory.stepsize(theory.constants(quadratic(2, 2), one_way, 3)), "not doubly stochastic"),
        (lambda: theory.stepsize(k, theorem=3), "theorem='3'"),
        (lambda: theory.theorem1(k, 0.1), "gamma=0.1: Theorem 1 holds up to"),
        (lambda: theory.theorem2(k, 0.1, 10, START), "gamma=0.1: Theorem 2 holds up to"),
        (lambda: theory.theorem2(k, 1e-9, 10, theory.Start(1.0, None, 0.0, 0.0)), "lowest="),
        (lambda: theory.theorem1(flat, 1e-6), "mu is not known"),
        (lambda: theory.theorem1(k, 1e-9).lyapunov(theory.Start(None, 1.0, 0.0, 0.0)), "no residual"),
        (lambda: theory.promised_rounds(0, k, START), "epsilon=0"),
        (lambda: theory.constants(problem, stgt.topology.ring(5), 3), "make them equal"),
        (lambda: theory.constants(logistic(4), ring, 3), "sigma2="),
        (lambda: theory.Constants(L=1.0, mu=2.0, n=4, tau=1, rho=0.1), "above L"),
        (lambda: theory.start(problem, [1.0, 2.0, 3.0]), "x0 has shape"),
        (lambda: theory.rounds(stgt.KGT(), problem, ring, 0.1), "no KGT strongly convex: it has STGT"),
        (lambda: theory.rounds("STGT", problem, ring, 0.1), "algorithm='STGT': give an instance"),
        (lambda: theory.rounds(stgt.STGT(), problem, ring, 0.1, convex=False, lowest=1e9), "lowest="),
        (lambda: theory.rounds(stgt.GTSAGA(), problem, ring, 0.1), "samples is not known"),
        (lambda: theory.rounds(stgt.STGT(), quadratic(2, 2), one_way, 0.1), "doubly stochastic"),
        (lambda: theory.rounds(stgt.STGT(), problem, ring, 0), "epsilon=0"),
        (lambda: theory.table1_rounds(0.1, k, "KGT"), "no KGT strongly convex: it has STGT"),
        (lambda: theory.table1_rounds(0.1, k, "DSGT"), "no DSGT"),
        (lambda: theory.table1_rounds(0.1, k, "STGT", convex=False), "lowest="),
        (lambda: theory.table1_rounds(0.1, k, "GTSAGA"), "samples is not known"),
        (lambda: theory.table1_rounds(0.1, flat), "mu is not known"),
        (
            lambda: theory.table1_rounds(0.1, theory.Constants(L=1.0, mu=0.5, n=4, tau=1, rho=0.1), "Scaffold"),
            "sampled=None",
        ),
        (lambda: theory.table1_rounds(0.1, theory.Constants(L=1.0, mu=0.5, n=4, tau=1, rho=1.8)), "Assumption 1"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(".")
        assert "\n" not in str(caught.value)
