"""LED: the steps of docs/led.md, each over random quadratics, graphs and β, inside and outside what it states."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stgt
from stgt import theory

SEEDS = st.integers(0, 2**32 - 1)
TAUS = st.sampled_from([1, 2, 5, 20])
STEPS = st.floats(-3, 0).map(lambda power: 10.0**power)  # γL


# -- what the steps are about ------------------------------------------------------------------------------------------


def _curvatures(rng, n, p, spread=100.0):
    """H_i with eigenvalues in [1/spread, 1], the largest of all being 1: γL is γ."""
    bases = np.linalg.qr(rng.standard_normal((n, p, p)))[0]
    values = spread ** -rng.random((n, p))
    values /= values.max()
    return bases @ (values[:, :, None] * bases.transpose(0, 2, 1))


def _local(H, gamma, tau):
    """A = (I − γH)^τ and K = (1/τ) Σ_{j<τ} (I − γH)^j of all nodes, as block-diagonal (n p, n p) matrices."""
    n, p = H.shape[:2]
    A, K = np.zeros((2, n * p, n * p))
    for i in range(n):
        here = slice(i * p, (i + 1) * p)
        powers = [np.linalg.matrix_power(np.eye(p) - gamma * H[i], j) for j in range(tau + 1)]
        A[here, here], K[here, here] = powers[-1], sum(powers[:-1]) / tau
    return A, K


def _round(W, A, K, beta):
    """Deviations (x, c̃) from the fixed point, c̃ = γτ(c − c*): h = A x − K c̃, x ← W h, c̃ ← c̃ + β(h − W h)."""
    W = np.kron(W, np.eye(len(A) // len(W)))
    one = np.eye(len(A))
    return np.block([[W @ A, -W @ K], [beta * (one - W) @ A, one - beta * (one - W) @ K]])


def _basis(n, p=1):
    """Orthonormal columns (n p, (n − 1) p) of what sums to 0 over the nodes."""
    return np.kron(np.linalg.qr(np.c_[np.ones(n), np.eye(n)[:, 1:]])[0][:, 1:], np.eye(p))


def _radius(matrices, A, K, beta):
    """The spectral radius a round of a period, with Σ_i c_i = 0."""
    n, size = len(matrices[0]), len(A)
    free = np.kron(np.diag([1.0, 0.0]), np.eye(size))
    free = np.c_[free[:, :size], np.r_[np.zeros((size, size - size // n)), _basis(n, size // n)]]
    product = np.eye(free.shape[1])
    for W in matrices:
        product = free.T @ _round(W, A, K, beta) @ free @ product
    return np.abs(np.linalg.eigvals(product)).max() ** (1 / len(matrices))


def _apart(matrices, beta):
    """The same at γ = 0, where A = K = I, without the mean."""
    n = len(matrices[0])
    Z, product = _basis(n), np.eye(2 * n - 2)
    for W in matrices:
        w, one = Z.T @ W @ Z, np.eye(n - 1)
        product = np.block([[w, -w], [beta * (one - w), one - beta * (one - w)]]) @ product
    return np.abs(np.linalg.eigvals(product)).max() ** (1 / len(matrices))


def _matching(n, pairs):
    W = np.eye(n)
    for i, j in pairs:
        W[[i, i, j, j], [i, j, i, j]] = 0.5
    return W


def _symmetric(rng, n):
    """A connected symmetric doubly stochastic matrix, some with eigenvalues near −1: a mixture of permutations."""
    parts = [np.eye(n)[rng.permutation(n)] for _ in range(3)] + [np.roll(np.eye(n), 1, 0), np.eye(n)]
    W = sum(share * P for share, P in zip(rng.dirichlet(np.ones(len(parts))), parts, strict=True))
    return (W + W.T) / 2


def _schedule(rng, n, directed=False):
    """Some rounds, connected together but hardly one by one."""
    found = []
    for _ in range(rng.integers(1, 5)):
        order, kind = rng.permutation(n), rng.integers(3)
        if kind == 0:
            found.append(_symmetric(rng, n))
        elif directed:
            found.append((np.eye(n) + np.eye(n)[order]) / 2)
        else:
            found.append(_matching(n, order[: n // 2 * 2].reshape(-1, 2)[: rng.integers(1, n // 2 + 1)]))
    return found


def _gain(matrices):
    """Γ = max_r Σ_k ‖W_r W_{r−1} ⋯ W_{r−k} − J‖₂ over k ≥ 0, or infinite if the sum is long."""
    n, largest = len(matrices[0]), 0.0
    for r in range(len(matrices)):
        product, total = np.eye(n), 0.0
        for k in range(300):
            product = product @ matrices[(r - k) % len(matrices)]
            left = np.linalg.norm(product - 1 / n, 2)
            total += left
            if left < 1e-9:
                break
        else:
            return np.inf
        largest = max(largest, total)
    return largest


STAR = [_matching(6, [(0, i)]) for i in range(1, 6)]  # one edge of a star at a time
NOW_AND_THEN = [np.full((2, 2), 0.5)] + 8 * [np.eye(2)]


# -- the steps ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(seed=SEEDS, tau=TAUS, gamma=STEPS, beta=st.floats(0.05, 2))
def test_step_1_the_round_is_this_map(seed, tau, gamma, beta):
    """The library's own radius of LED, on a schedule."""
    rng = np.random.default_rng(seed)
    n, p = 3, 2
    H, matrices = _curvatures(rng, n, p), [_symmetric(rng, n), _matching(n, [(0, 1)])]
    problem = stgt.problems.Quadratic(H, rng.standard_normal((n, p)))
    led = stgt.LED(gamma=gamma, tau=tau, beta=beta)
    found = theory.spectral_radius(led, problem, stgt.topology.sequence(matrices))
    assert found == pytest.approx(_radius(matrices, *_local(H, gamma, tau), beta), abs=1e-6)


@settings(max_examples=40)
@given(seed=SEEDS, tau=TAUS, gamma=STEPS)
def test_step_1_what_local_steps_are(seed, tau, gamma):
    """I − A = γτHK, 0 ⪯ A ⪯ I, 0 ≺ K ⪯ I, and P = A K⁻¹ has 0 ⪯ P ⪯ I ⪯ P + γτH."""
    H = _curvatures(np.random.default_rng(seed), 3, 2)
    (A, K), G = _local(H, gamma, tau), gamma * tau * np.asarray(_block(H))
    np.testing.assert_allclose(np.eye(6) - A, G @ K, atol=1e-12)
    P = A @ np.linalg.inv(K)
    for least in (A, np.eye(6) - A, np.eye(6) - K, P, np.eye(6) - P, P + G - np.eye(6)):
        assert np.linalg.eigvalsh((least + least.T) / 2).min() > -1e-10
    assert np.linalg.eigvalsh(K).min() > 0


def _block(H):
    n, p = H.shape[:2]
    found = np.zeros((n * p, n * p))
    for i in range(n):
        found[i * p : (i + 1) * p, i * p : (i + 1) * p] = H[i]
    return found


@settings(max_examples=40)
@given(seed=SEEDS, tau=TAUS, gamma=STEPS, share=st.floats(0.01, 1))
def test_step_2_an_energy_for_a_fixed_graph(seed, tau, gamma, share):
    """V = ‖x‖²_P + ‖c̃‖²_{(I−W)⁺}/β loses at least ‖h − x‖²_P + γτ‖h‖²_H if β ≤ 1 + λ_min(W)."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(2, 6)), 2
    W, H = _symmetric(rng, n), _curvatures(rng, n, p)
    values = np.linalg.eigvalsh(W)
    assume(values[-2] < 1 - 1e-3 and values[0] > -1 + 1e-3)
    beta, (A, K), G = share * (1 + values[0]), _local(H, gamma, tau), gamma * tau * _block(H)
    P, dual = A @ np.linalg.inv(K), np.kron(np.linalg.pinv(np.eye(n) - W, rcond=1e-9), np.eye(p))
    V = np.block([[P, 0 * P], [0 * P, dual / beta]])
    M, Z = _round(W, A, K, beta), np.kron(np.eye(2), np.eye(n * p))
    Z = np.c_[Z[:, : n * p], Z[:, n * p :] @ _basis(n, p)]
    h = np.c_[A, -K]
    moved = h - np.c_[np.eye(n * p), 0 * A]
    left = Z.T @ (V - M.T @ V @ M - moved.T @ P @ moved - h.T @ G @ h) @ Z
    assert np.linalg.eigvalsh((left + left.T) / 2).min() > -1e-8 * np.linalg.norm(V)
    assert _radius([W], A, K, beta) < 1


@settings(max_examples=40)
@given(seed=SEEDS, tau=TAUS, gamma=STEPS, share=st.floats(0.01, 0.99))
def test_step_3_equal_curvatures_on_a_fixed_graph(seed, tau, gamma, share):
    """All H_i equal: stable for β < min(2, 2(1 + λ)/(1 − λ)); above the second, unstable for small γ."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    W, H = _symmetric(rng, n), np.repeat(_curvatures(rng, 1, 2), n, axis=0)
    values = np.linalg.eigvalsh(W)
    assume(values[-2] < 1 - 1e-3 and values[0] > -1 + 1e-3)
    exact = 2 * (1 + values[0]) / (1 - values[0])
    assert _radius([W], *_local(H, gamma, tau), share * min(2, exact)) < 1
    assert theory.largest_beta(stgt.topology.from_matrix(W)) == pytest.approx(min(2, exact))
    assert _radius([W], *_local(H, 1e-6, 1), 1.01 * exact) > 1


@given(size=st.floats(0, 0.999), angle=st.floats(0.01, 6.27), beta=st.floats(0.001, 10))
def test_step_3_any_fixed_graph_at_small_stepsizes(size, angle, beta):
    """λ² − (1 + w − β(1 − w))λ + w: the condition on β for each eigenvalue w, directed graphs included."""
    w = size * np.exp(1j * angle)
    allowed = 2 * (1 - abs(w) ** 2) * abs(1 - w) ** 2 / abs(1 - 2 * w + abs(w) ** 2) ** 2
    assume(abs(beta / allowed - 1) > 1e-6)
    assert (np.abs(np.roots([1, -(1 + w - beta * (1 - w)), w])).max() < 1) == (beta < allowed)
    # c mixed with Wᵀ, and with (W + Wᵀ)/2, on a W whose eigenvectors are W's and Wᵀ's
    e, N = 1 - w, (1 - w.conjugate()) - w * (1 - w)
    back, both = 2 * (1 - abs(w) ** 2) * N.real / abs(N) ** 2, 2 * (1 - abs(w) ** 2) / abs(e) ** 2
    for limit, mixed in ((back, e.conjugate()), (both, e.real)):
        assume(abs(beta - limit) > 1e-6 * beta)
        assert (np.abs(np.roots([1, -(1 + w - beta * mixed), w])).max() < 1) == (beta < limit)


@given(seed=SEEDS, beta=st.floats(0.01, 2), directed=st.booleans())
def test_step_4_the_coupling_does_not_see_the_graph(seed, beta, directed):
    """At γ = 0, u = c̃ + βx: u ← (1 − β)u + β²x, x ← W((1 + β)x − u)."""
    rng = np.random.default_rng(seed)
    W, x, c = _schedule(rng, 4, directed)[0], *rng.standard_normal((2, 4))
    h = x - c
    new_x, new_c, u = W @ h, c + beta * (h - W @ h), c + beta * x
    np.testing.assert_allclose(new_c + beta * new_x, (1 - beta) * u + beta**2 * x, atol=1e-12)
    np.testing.assert_allclose(new_x, W @ ((1 + beta) * x - u), atol=1e-12)


@settings(max_examples=40)
@given(seed=SEEDS, share=st.floats(0.01, 0.99), directed=st.booleans())
def test_step_5_small_beta_on_any_schedule(seed, share, directed):
    """At γ = 0: stable if β < 1/(2Γ) and β ≤ 1, directed or not, connected in a round or over many."""
    rng = np.random.default_rng(seed)
    matrices = _schedule(rng, int(rng.integers(2, 6)), directed)
    gain = _gain(matrices)
    assume(np.isfinite(gain))
    assert _apart(matrices, share * min(1.0, 1 / (2 * gain) if gain else 1.0)) < 1


@settings(max_examples=40)
@given(gaps=st.lists(st.integers(1, 12), min_size=1, max_size=4), beta=st.floats(0.01, 2))
def test_step_6_rounds_that_meet_now_and_then(gaps, beta):
    """W_r is J, then I until the gap is over: a period multiplies c by ∏(1 − β g)."""
    matrices = [W for gap in gaps for W in [*(gap - 1) * [np.eye(2)], np.full((2, 2), 0.5)]]
    product = float(np.prod([abs(1 - beta * gap) for gap in gaps]))
    assert _apart(matrices, beta) ** len(matrices) == pytest.approx(product, abs=1e-9)


def test_step_6_no_beta_is_stable_on_every_schedule():
    """Nine rounds with one meeting want β < 2/9, one edge of a six-node star at a time 1/6: ¼ diverges on both."""
    for matrices, limit in ((NOW_AND_THEN, 2 / 9), (STAR, 1 / 6)):
        topology = stgt.topology.sequence(matrices)
        assert theory.largest_beta(topology) == pytest.approx(limit, rel=1e-4)
        n = topology.n
        problem = stgt.problems.Quadratic(np.ones((n, 1, 1)), np.arange(n)[:, None])
        for gamma in (1e-4, 1e-3):
            assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=2), problem, topology) > 1.003
            assert theory.spectral_radius(stgt.LED(gamma=gamma, tau=2, beta=0.95 * limit), problem, topology) < 1


def test_step_6_connected_and_positive_rounds_are_not_enough():
    """w = 0 once, then w = 0.99 114 times: every W_r ⪰ 0, ‖W_r − J‖ ≤ 0.99, and β = 3.2(1 − 0.99) is too large."""
    slow, fast = (np.array([[1 + w, 1 - w], [1 - w, 1 + w]]) / 2 for w in (0.99, 0.0))
    assert _apart([fast, *114 * [slow]], 0.032) > 1
    assert _apart([fast, *114 * [slow]], 0.01 / (2 * 0.99)) < 1  # step 5: (1 − σ)/(2σ)


@settings(max_examples=25)
@given(seed=SEEDS, beta=st.floats(0.05, 1), directed=st.booleans())
def test_step_7_the_graph_alone_decides_at_small_stepsizes(seed, beta, directed):
    """H_i differ and one is not even convex; their mean is: the mode of the mean is 1 − γτλ(H̄), the others are W's."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    matrices, H = _schedule(rng, n, directed), _curvatures(rng, n, 1, 3.0)
    H[0] = -0.2
    assume(H.mean() > 0.1)
    apart = _apart(matrices, beta)
    assume(abs(apart - 1) > 0.01)
    gamma = 1e-6
    expected = max(apart, 1 - gamma * H.mean())
    assert _radius(matrices, *_local(H, gamma, 1), beta) == pytest.approx(expected, abs=1e-9 if apart < 1 else 1e-4)


def _comparison(sigma, beta, epsilon, m):
    """What a round does at most to (‖x̄ part‖, ‖x⊥‖, ‖u‖), for γτL = ε and ‖A‖ ≤ 1 − m."""
    half = epsilon / 2
    return np.array(
        [
            [1 - m, epsilon + half * beta, half],
            [sigma * epsilon, sigma * (1 + beta + epsilon + half * beta), sigma * (1 + half)],
            [beta * epsilon, beta**2 + beta * epsilon + half * beta**2, 1 - beta + half * beta],
        ]
    )


@settings(max_examples=25)
@given(seed=SEEDS, tau=TAUS, share=st.floats(0.1, 0.9), power=st.floats(-4, -1), directed=st.booleans())
def test_step_8_small_stepsizes_with_numbers(seed, tau, share, power, directed):
    """Any rounds with ‖W_r − J‖ ≤ σ: the radius is at most that of the 3 × 3 comparison, which is below 1 at last."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    matrices, H = _schedule(rng, n, directed), _curvatures(rng, n, 2, 3.0)
    sigma = max(np.linalg.norm(W - 1 / n, 2) for W in matrices)
    assume(sigma < 0.95)
    beta, epsilon = share * min(1.0, (1 - sigma) / (2 * sigma) if sigma > 1e-9 else 1.0), 10.0**power
    A, K = _local(H, epsilon / tau, tau)
    m = 1 - np.linalg.eigvalsh(A).max()
    bound = np.abs(np.linalg.eigvals(_comparison(sigma, beta, epsilon, m))).max()
    assert _radius(matrices, A, K, beta) <= bound + 1e-9
    tiny = 1e-3 * (1 - share) * (1 - sigma) ** 2
    assert np.abs(np.linalg.eigvals(_comparison(sigma, beta, tiny, tiny / 3 * (1 - tiny)))).max() < 1


@settings(max_examples=40)
@given(seed=SEEDS, tau=TAUS, gamma=STEPS, share=st.floats(0.01, 0.99), directed=st.booleans())
def test_step_9_equal_curvatures_on_any_schedule(seed, tau, gamma, share, directed):
    """All H_i equal, b_i any: stable for every γL ≤ 1 if β < (1 − σ)/(2σ) and β ≤ 1."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    matrices = _schedule(rng, n, directed)
    sigma = max(np.linalg.norm(W - 1 / n, 2) for W in matrices)
    assume(sigma < 0.999)
    beta = share * min(1.0, (1 - sigma) / (2 * sigma) if sigma > 1e-9 else 1.0)
    assert _radius(matrices, *_local(np.repeat(_curvatures(rng, 1, 1), n, axis=0), gamma, tau), beta) < 1


@settings(max_examples=40)
@given(seed=SEEDS, share=st.floats(0.01, 0.99), weight=st.floats(0.01, 1))
def test_step_10_solved_local_problems(seed, share, weight):
    """A = 0, h = −Kc̃: ‖c̃‖²_K never grows on a symmetric schedule if β(1 − λ_min)‖K‖ < 2, and shrinks over a period."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(2, 6)), 2
    matrices, K = _schedule(rng, n), weight * _block(_curvatures(rng, n, p))
    least = min(np.linalg.eigvalsh(W)[0] for W in matrices)
    beta = 2 * share / ((1 - least) * weight)
    product, Z = np.eye(n * p), _basis(n, p)
    for W in matrices:
        L = np.kron(np.eye(n) - W, np.eye(p))
        M = np.eye(n * p) - beta * L @ K
        lost = Z.T @ (K - M.T @ K @ M) @ Z
        assert np.linalg.eigvalsh((lost + lost.T) / 2).min() > -1e-9
        product = M @ product
    assume(np.linalg.eigvalsh(sum(np.eye(n) - W for W in matrices))[1] > 1e-3)
    assert np.abs(np.linalg.eigvals(Z.T @ product @ Z)).max() < 1


def test_step_10_beyond_it_diverges():
    """One eigenvalue of β(I − W)K above 2, here 2.1 on two nodes."""
    K, W = 0.7 * np.eye(2), np.full((2, 2), 0.5)
    beta = 2.1 / 0.7
    M = np.eye(2) - beta * (np.eye(2) - W) @ K
    assert np.abs(np.linalg.eigvals(_basis(2).T @ M @ _basis(2))).max() == pytest.approx(1.1)


@settings(max_examples=40)
@given(seed=SEEDS, power=st.floats(-6, -2))
def test_step_11_nearly_solved_local_problems(seed, power):
    """‖A‖ ≤ α, every round connected: (‖c̃‖_K, ‖A x‖) shrinks as the 2 × 2 comparison does."""
    rng = np.random.default_rng(seed)
    n, beta, alpha = int(rng.integers(2, 5)), 0.5, 10.0**power
    matrices = [_symmetric(rng, n) for _ in range(3)]
    gap = min(1 - np.linalg.eigvalsh(W)[-2] for W in matrices)
    assume(gap > 0.02)
    K, A = np.diag(rng.uniform(0.2, 1.0, n)), alpha * np.diag(rng.random(n))
    bound = np.abs(np.linalg.eigvals(_solved(beta, gap, K, alpha))).max()
    assert _radius(matrices, A, K, beta) <= bound + 1e-9
    assert np.abs(np.linalg.eigvals(_solved(beta, gap, K, 1e-3 * gap))).max() < 1


def _solved(beta, gap, K, alpha):
    low, high = np.diag(K).min(), np.diag(K).max()
    kept = np.sqrt(1 - beta * (2 - 2 * beta * high) * gap * low)
    return np.array([[kept, 2 * beta * np.sqrt(high)], [alpha * np.sqrt(high), alpha]])


@settings(max_examples=25)
@given(seed=SEEDS, share=st.floats(0.05, 0.99), directed=st.booleans())
def test_step_12_independent_rounds(seed, share, directed):
    """In mean square: stable if β < (1 − √ρ)/(2√ρ) and β ≤ 1, ρ = ‖E[WᵀW] − J‖."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    topology = stgt.topology.any_of([*_schedule(rng, n, directed), _symmetric(rng, n)])
    root = float(theory.rho(topology)) ** 0.5
    assume(root < 0.99)
    assert theory.small_step_radius(topology, share * min(1.0, (1 - root) / (2 * root) if root > 1e-9 else 1.0)) < 1


@pytest.mark.parametrize("n", [4, 6])
def test_step_12_independent_projections(n):
    """W² = W and E[W] = (1 − p)I + pJ: stable iff β < 2p/(2 − p). Random matchings have p = n/(2(n − 1))."""
    topology, limit = stgt.topology.random_matching(n), 2 * n / (3 * n - 4)
    assert theory.largest_beta(topology) == pytest.approx(limit, rel=2e-3)
    assert theory.small_step_radius(topology, 0.99 * limit) < 1 < theory.small_step_radius(topology, 1.01 * limit)


def test_step_12_a_meeting_by_chance():
    """J with probability 1/9, else I: β < 2/17, the same formula; and ¼ is too large."""
    topology = stgt.topology.any_of(NOW_AND_THEN)
    assert theory.largest_beta(topology) == pytest.approx(2 / 17, rel=2e-3)


def test_step_13_in_between_curvatures_that_differ_can_break_it():
    """Stable at small stepsizes (radius 0.96), and at β = 0.75 unstable for γτL = 0.57; at β = ½ stable there."""
    third = np.array([[1, 0, 1, 1, 1], [0, 3, 0, 1, 0], [1, 0, 1, 1, 1], [1, 1, 1, 1, 0], [1, 0, 1, 0, 2]]) / 4
    matrices = [_matching(5, [(1, 2)]), third, _matching(5, [(0, 4)])]
    H = np.array([1.0, 0.42, 0.039, 0.0085, 0.555])[:, None, None]
    assert _apart(matrices, 0.75) < 0.97
    assert _radius(matrices, *_local(H, 0.284, 2), 0.75) > 1.02
    assert _radius(matrices, *_local(H, 0.284, 2), 0.5) < 1
