"""The noise of minibatch gradients on quadratics, which grows with the distance to the minimum.

Sample j of node i has the gradient G_ij (x, 1), which is affine in x. A minibatch of b samples, drawn with replacement,
has the mean Ḡ_i (x, 1) and, given x, the covariance

    (1/b) mean_j (G_ij − Ḡ_i) (x, 1)(x, 1)ᵀ (G_ij − Ḡ_i)ᵀ

which is linear in the second moment of (x, 1). Given the past, the noises of different steps have mean 0. So they are
uncorrelated, and a round's second moments follow from those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.problems.base import Problem

Array = np.ndarray
ROOM = 2**27  # the most numbers in all samples' gradients: 1 GB
AFFINE = 1e-8  # the largest relative deviation of a gradient from an affine function


class SampleNoise:
    """Cov g_i of minibatches, from the second moment of (x, 1).

    Args:
        G: (n, m, p, p + 1), the gradients of the samples as maps of (x, 1).
        chances: (n, m), the probabilities of the samples; 0 for padding.
        batch: samples of a minibatch.
    """

    def __init__(self, G: Array, chances: Array, batch: int) -> None:
        n, m, p, _ = G.shape
        mean = (chances[:, :, None, None] * G).sum(axis=1, keepdims=True)
        self.apart = np.sqrt(chances / batch)[:, :, None, None] * (G - mean)  # so that Cov = Σ_j apart_j X apart_jᵀ
        self.pairs: Array | None = None
        if p * (p + 1) <= 2 * m:  # then pairs of entries take fewer numbers than samples do
            flat = self.apart.reshape(n, m, -1)
            pairs = (flat.transpose(0, 2, 1) @ flat).reshape(n, p, p + 1, p, p + 1)
            self.pairs = pairs.transpose(0, 1, 3, 2, 4).reshape(n, p * p, -1)

    def covariance(self, X: Array) -> Array:
        """(n, p, p) from X (n, p + 1, p + 1)."""
        n, _, p, _ = self.apart.shape
        if self.pairs is not None:
            return (self.pairs @ X.reshape(n, -1, 1)).reshape(n, p, p)
        there = (self.apart @ X[:, None]).transpose(0, 2, 1, 3).reshape(n, p, -1)
        return there @ self.apart.transpose(0, 2, 1, 3).reshape(n, p, -1).transpose(0, 2, 1)


def sample_noise(problem: Problem) -> SampleNoise:
    """The noise of a problem's minibatches; NotCovered if the gradients of its samples are not affine, or too large."""
    model, n, p = problem.model, problem.n, problem.p
    assert problem.batch is not None
    assert problem.counts is not None
    m = int(problem.counts.max())
    if n * m * p * (p + 1) > ROOM:
        raise NotCovered(
            f"{problem.name} has {n * m} samples of dimension {p}, and the second moments of minibatches need all of "
            "their Hessians: give fewer samples or a smaller p."
        )

    def gradients(x: Array) -> Array:
        return np.asarray(model.component_gradients(np, problem.data, np.broadcast_to(x, (n, p))))  # type: ignore[attr-defined]

    at_zero = gradients(np.zeros(p))
    G = np.stack([*(gradients(one) - at_zero for one in np.eye(p)), at_zero], axis=3)
    test = np.cos(1.0 + np.arange(n * p)).reshape(n, p)
    there, expected = gradients(test), (G[..., :p] @ test[:, None, :, None])[..., 0] + at_zero
    if not np.allclose(there, expected, rtol=AFFINE, atol=AFFINE * max(1.0, float(np.abs(there).max()))):
        raise NotCovered(
            f"the samples of {problem.name} are not quadratic, which the exact theory of minibatches needs."
        )
    chances = (np.arange(at_zero.shape[1]) < problem.counts[:, None]) / problem.counts[:, None]
    return SampleNoise(G, chances, problem.batch)


@dataclass(frozen=True, eq=False)
class Additive:
    """Noise (n, p) of covariance C (n, p, p), for any state. Like that of samples it is independent of the state's
    mean, and uncorrelated with the round's other noises."""

    C: Array

    def covariance(self, M: Array, before: dict[str, Array]) -> Array:
        """(n, p, p) from the second moments M of every node's (state, 1), (n, s + 1, s + 1).

        `before` has the covariances of the round's earlier noises. All is linear in M, so M may also be a difference or
        a derivative of second moments.
        """
        return self.C * M[:, -1:, -1:]


@dataclass(frozen=True, eq=False)
class OfSamples:
    """The effect on x of the noises ξ_t of minibatch gradients in k local steps x ← B x + d − γ ξ_t:
    Σ_t B^(k−1−t) ξ_t. With one step it is the noise of a gradient at x.

    Attributes:
        samples: the noise of the samples.
        x: (k, n, p + 1, s + 1), (x, 1) before each step as a map of (state, 1), without noise.
        through: how earlier noises enter x before the first step, (n, p, p) by name.
        B: (n, p, p).
        gamma: a number, or (n, 1, 1).
    """

    samples: SampleNoise
    x: Array
    through: dict[str, Array]
    B: Array
    gamma: Array | float

    def covariance(self, M: Array, before: dict[str, Array]) -> Array:
        B, BT, p = self.B, self.B.transpose(0, 2, 1), self.B.shape[1]
        inherited, left = np.zeros_like(B), np.zeros_like(B)
        for name, K in self.through.items():
            inherited = inherited + K @ before[name] @ K.transpose(0, 2, 1)
        for X in self.x @ M @ self.x.transpose(0, 1, 3, 2):
            X[:, :p, :p] += inherited + self.gamma**2 * left
            left = B @ left @ BT + self.samples.covariance(X)
            inherited = B @ inherited @ BT
        return left


Noise = Additive | OfSamples


def with_one(v: Array, one: float) -> Array:
    """Every node's (state, 1), (n, s + 1), from the states (n, s); for a derivative of it, 0 instead of the 1."""
    return np.concatenate([v, np.full((len(v), 1), one)], axis=1)


def bordered(blocks: Array) -> Array:
    """The second moments (n, s + 1, s + 1) of (e, 0) from those of the deviations e, (n, s, s)."""
    return np.pad(blocks, ((0, 0), (0, 1), (0, 1)))


def both_ways(v: Array, mean: Array) -> Array:
    """(v, 1)(e, 0)ᵀ + (e, 0)(v, 1)ᵀ of every node, with e deviations of this mean, (n, s + 1, s + 1)."""
    across = with_one(v, 1.0)[:, :, None] * with_one(mean, 0.0)[:, None]
    return across + across.transpose(0, 2, 1)
