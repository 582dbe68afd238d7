"""What the tests run over: an instance of every algorithm, and small problems of every kind."""

from __future__ import annotations

import numpy as np

import stgt


def instances(gamma: float = 0.05, tau: int = 3) -> dict[str, stgt.Algorithm]:
    """Every algorithm with every option that changes its recursion, by a readable name."""
    return {
        "STGT": stgt.STGT(gamma=gamma, tau=tau),
        "STGT-adjoint": stgt.STGT(gamma=gamma, tau=tau, adjoint=True),
        "FlexGT-first": stgt.FlexGT(gamma=gamma, tau=tau),
        "FlexGT-last": stgt.FlexGT(gamma=gamma, tau=tau, snapshot="last"),
        "KGT": stgt.KGT(gamma=gamma, tau=tau, eta_s=0.8),
        "KGT-warm": stgt.KGT(gamma=gamma, tau=tau, eta_s=0.8, warm_start=True),
        "DSGT": stgt.DSGT(gamma=gamma),
        "PushPull": stgt.PushPull(gamma=gamma),
        "LUGT": stgt.LUGT(gamma=gamma, tau=tau),
        "LUGT-cta": stgt.LUGT(gamma=gamma, tau=tau, atc_y=False),
        "AugDGM": stgt.AugDGM(gamma=gamma),
        "DIGing": stgt.DIGing(gamma=gamma),
        "NEXT": stgt.NEXT(gamma=gamma, alpha=0.9, decay=0.1),
        "DPSGD": stgt.DPSGD(gamma=gamma, tau=tau),
        "DPSGD-atc": stgt.DPSGD(gamma=gamma, atc=True),
        "FedAvg": stgt.FedAvg(gamma=gamma, tau=tau),
        "FedProx": stgt.FedProx(gamma=gamma, tau=tau, mu_prox=0.3),
        "Scaffold-I": stgt.Scaffold(gamma=gamma, tau=tau, gamma_g=1.2, option="I"),
        "Scaffold-II": stgt.Scaffold(gamma=gamma, tau=tau, gamma_g=1.2),
        "Scaffold-warm": stgt.Scaffold(gamma=gamma, tau=tau, warm_start=True),
        "ScaffoldPlus": stgt.ScaffoldPlus(gamma=gamma, tau=tau, gamma_g=1.2, gamma_c=0.7),
        "ProxSkip": stgt.ProxSkip(gamma=gamma, p=0.4),
        "ProxSkip-periodic": stgt.ProxSkip(gamma=gamma, tau=tau),
        "GTSAGA": stgt.GTSAGA(gamma=gamma),
        "GTSVRG": stgt.GTSVRG(gamma=gamma, period=4),
        "STGT-relaxed": stgt.STGT(gamma=gamma, tau=tau, beta=0.25),
        "KGT-relaxed": stgt.KGT(gamma=gamma, tau=tau, eta_s=0.8, beta=0.25),
        "FlexGT-relaxed": stgt.FlexGT(gamma=gamma, tau=tau, beta=0.5),
        "FlexGT-mixing_steps": stgt.FlexGT(gamma=gamma, tau=tau, mixing_steps=2),
        "LUGT-relaxed": stgt.LUGT(gamma=gamma, tau=tau, beta=0.5),
        "Scaffold-relaxed": stgt.Scaffold(gamma=gamma, tau=tau, beta=0.5),
        "LED": stgt.LED(gamma=gamma, tau=tau),
        "ExactDiffusion": stgt.ExactDiffusion(gamma=gamma),
        "EXTRA": stgt.EXTRA(gamma=gamma),
        "FedDyn": stgt.FedDyn(gamma=gamma, tau=tau, alpha=0.5),
        "MomentumTracking": stgt.MomentumTracking(gamma=gamma, momentum=0.5),
        "GTAdam": stgt.GTAdam(gamma=gamma, beta_1=0.5, beta_2=0.9, epsilon=0.5),
        "Outer-STGT": stgt.Outer(stgt.STGT(beta=0.25), gamma=gamma, tau=tau, momentum=0.3),
        "Outer-LED": stgt.Outer(stgt.LED(), gamma=gamma, tau=tau, momentum=0.3),
        "Outer-ScaffoldPlus": stgt.Outer(stgt.ScaffoldPlus(gamma=gamma, tau=tau), momentum=0.3),
        "DiLoCo": stgt.DiLoCo(gamma=gamma, tau=tau, momentum=0.5),
        "NoLoCo": stgt.NoLoCo(gamma=gamma, tau=tau),
        "FedAvgM": stgt.FedAvgM(gamma=gamma, tau=tau, momentum=0.5),
        "FedAdam": stgt.FedAdam(gamma=gamma, tau=tau, lr=0.1, beta_1=0.5, beta_2=0.9, epsilon=0.1),
        "FedYogi": stgt.FedYogi(gamma=gamma, tau=tau, lr=0.02, beta_1=0.5, beta_2=0.9, epsilon=0.02),
        "Adaptive-STGT": stgt.Adaptive(stgt.STGT(), gamma=gamma, tau=tau, lr=0.5, epsilon=0.5, rule="adagrad"),
        "Adaptive-LED": stgt.Adaptive(stgt.LED(), gamma=gamma, tau=tau, lr=0.5, beta_1=0.5, epsilon=0.5, rule="yogi"),
        "Adaptive-ScaffoldPlus": stgt.Adaptive(
            stgt.ScaffoldPlus(gamma=gamma, tau=tau), lr=0.4, beta_1=0.5, beta_2=0.9, epsilon=0.5
        ),
    }


def quadratic(n: int, p: int, noise: float = 0.0, seed: int = 0) -> stgt.problems.Problem:
    """A random strongly convex quadratic, different at each node."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, p, p)) / np.sqrt(p)
    return stgt.problems.Quadratic(root @ root.transpose(0, 2, 1) + 0.3 * np.eye(p), rng.normal(size=(n, p)), noise)


def logistic(n: int, p: int = 3, seed: int = 0, **options) -> stgt.problems.Problem:
    """Logistic regression on random data, nodes with different numbers of samples."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(3, 8, size=n)
    features = rng.normal(size=(counts.sum(), p))
    labels = np.where(features @ rng.normal(size=p) + 0.5 * rng.normal(size=len(features)) > 0, 1, 0)
    labels[:2] = 0, 1
    parts = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    return stgt.problems.logistic(features, labels, partition=parts, **{"l2": 0.1, "batch": 2, **options})


def least_squares(n: int, p: int = 3, seed: int = 0, **options) -> stgt.problems.Problem:
    """Least squares on random data, nodes with different numbers of samples unless they are sorted."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(3, 8, size=n)
    features, labels = rng.normal(size=(counts.sum(), p)), rng.normal(size=counts.sum())
    given = {"l2": 0.1, "batch": 2, "partition": np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1]), **options}
    return stgt.problems.least_squares(features, labels, n, **given)


def directed_schedule(n: int, period: int = 3, seed: int = 0) -> stgt.topology.Topology:
    """A time-varying schedule of directed doubly stochastic matrices: mixtures of I, i → i + 1 and two others."""
    rng = np.random.default_rng(seed)
    stack = []
    for _ in range(period):
        weights = rng.dirichlet(np.ones(4))
        parts = [np.eye(n), np.roll(np.eye(n), 1, axis=1)] + [np.eye(n)[rng.permutation(n)] for _ in range(2)]
        stack.append(sum(weight * part for weight, part in zip(weights, parts, strict=True)))
    return stgt.topology.sequence(stack)


def suited(algorithm: stgt.Algorithm, topology: stgt.topology.Topology) -> stgt.topology.Topology:
    """The topology, its matrices made symmetric where the method is for such only."""
    if topology.symmetric or not algorithm.spec().symmetric_only:
        return topology
    return stgt.topology.sequence([(W + W.T) / 2 for W in map(topology.matrix, range(topology.period))])


def two_matrices(n: int, period: int = 1, seed: int = 0) -> stgt.topology.Topology:
    """Sparse row- and column-stochastic weights on different directed graphs; each has the ring 0 → 1 → … → 0."""
    rng = np.random.default_rng(seed)

    def links() -> np.ndarray:
        drawn = rng.random((n, n)) * (rng.random((n, n)) < 0.3)
        drawn += np.diag(rng.random(n) + 0.2)
        drawn[(np.arange(n) + 1) % n, np.arange(n)] += 0.3
        return drawn

    pull, push = ([links() for _ in range(period)] for _ in range(2))
    return stgt.topology.push_pull([W / W.sum(axis=1, keepdims=True) for W in pull], [W / W.sum(axis=0) for W in push])
