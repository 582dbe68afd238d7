"""Nodes that come and go: what members converge to, and what is conserved when they change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stgt
from catalogue import least_squares, logistic, quadratic
from stgt.problems.members import problem_of
from stgt.simulator import Crash, Join, Leave, Pause, Repair, random_churn, simulate_churn

N, P, GAMMA, TAU = 8, 3, 0.2, 4
METHODS = {
    "ST-GT": stgt.STGT(gamma=GAMMA, tau=TAU),
    "LED": stgt.LED(gamma=GAMMA, tau=TAU, beta=0.25),
    "K-GT": stgt.KGT(gamma=GAMMA, tau=TAU, eta_s=0.8),
    "Outer(ST-GT)": stgt.Outer(stgt.STGT(beta=0.5), gamma=GAMMA, tau=TAU, lr=0.7, momentum=0.3),
}


def ridge(**options) -> stgt.Problem:
    return stgt.problems.ridge(n=N, p=P, mu=0.5, noise=options.pop("noise", 0.0), seed=3)


def minimiser(problem: stgt.Problem, members) -> np.ndarray:
    """x* of ridge regression over some nodes, from the normal equations: Σ_V (2θ_iθ_iᵀ + μI) x = Σ_V 2 d_i θ_i."""
    theta, d = problem.data["theta"][members], problem.data["d"][members]
    return np.linalg.solve(2 * theta.T @ theta + len(d) * 0.5 * np.eye(P), 2 * theta.T @ d)


def run(algorithm, problem, rounds, changes, topology=stgt.topology.exponential, **options):
    return simulate_churn(
        algorithm, problem, topology, rounds, changes=changes, **{"engine": "numpy", "dtype": "float64", **options}
    )


@pytest.mark.parametrize("name", METHODS)
def test_members_converge_to_their_own_minimiser(name):
    """After every change, whoever is there: a crash that is repaired, a leave, a join, a pause."""
    problem = ridge()
    changes = [Crash(10, 3), Leave(150, [0, 5]), Join(300, 3), Pause(305, 1, rounds=30)]
    trace = run(METHODS[name], problem, 500, changes, every=10)
    here = [1, 2, 3, 4, 6, 7]
    np.testing.assert_allclose(trace.x[0, here], np.tile(minimiser(problem, here), (len(here), 1)), rtol=0, atol=1e-10)
    # What is measured at a round is of its members after its changes: so ten rounds before the next change.
    for r, members in ((140, {0, 1, 2, 4, 5, 6, 7}), (290, {1, 2, 4, 6, 7}), (500, set(here))):
        at = trace.rounds.tolist().index(r)
        assert set(np.flatnonzero(trace.members[at]).tolist()) == members
        assert trace.residual[0, at] < 1e-20
        assert trace["consensus"][0, at] < 1e-20
    assert trace["sum_c"].max() < 1e-13


@pytest.mark.parametrize("name", METHODS)
def test_where_a_crash_without_repair_ends(name):
    """∇f_V(x∞) = −(Σ_V c_i)/|V|. A node that is lost after convergence takes c_k = −∇f_k(x*) along, and as all c sum to
    0 before, Σ_V c_i = ∇f_k(x*) = −Σ_V ∇f_i(x*): the others stay at the minimiser of all, as if k were still there."""
    problem = ridge()
    here = [0, 1, 2, 3, 4, 5, 6]
    for when in (7, 150):
        trace = run(METHODS[name], problem, 400, [Crash(when, 7)], repair="none")
        x, c = trace.x[0, here], trace.state["c"][0, here]
        assert np.ptp(x, axis=0).max() < 1e-10
        gradient = problem.gradients(x[0])[here].mean(axis=0)
        np.testing.assert_allclose(gradient, -c.mean(axis=0), atol=1e-10)
        assert np.linalg.norm(c.sum(axis=0)) > 1e-2
        assert trace["sum_c"][0, -1] == pytest.approx(np.linalg.norm(c.sum(axis=0)))
        if when == 150:
            np.testing.assert_allclose(x[0], minimiser(problem, list(range(N))), atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_late_repair(name):
    """At the round of the crash it is the projection, to the last bit. Later it leads to the members' own minimiser. A
    crash without repair leaves them at the minimiser of all."""
    problem, here = ridge(), [0, 1, 2, 3, 4, 5, 6]
    at_once = run(METHODS[name], problem, 20, [Crash(7, 7)])
    assert repr(Repair(7)) == "Repair(round=7)"
    repaired = run(METHODS[name], problem, 20, [Crash(7, 7), Repair(7)], repair="none")
    np.testing.assert_array_equal(at_once.x, repaired.x)
    trace = run(METHODS[name], problem, 600, [Crash(150, 7), Repair(350)], repair="none")
    assert np.flatnonzero(trace["sum_c"][0] > 1e-2).tolist() == list(range(150, 350))
    off = minimiser(problem, list(range(N))) - minimiser(problem, here)
    assert trace.residual[0, 349] == pytest.approx(off @ off, rel=1e-8)
    assert trace.residual[0, -1] < 1e-20


def test_methods_without_a_sum_have_nothing_to_repair():
    problem, changes = ridge(), [Crash(5, 2), Leave(9, 3), Join(12, 2)]
    for method in (
        stgt.DPSGD(gamma=GAMMA, tau=TAU),
        stgt.DiLoCo(gamma=GAMMA, tau=TAU),
        stgt.FedAvg(gamma=GAMMA, tau=TAU),
    ):
        first, second = (run(method, problem, 20, changes, repair=repair) for repair in ("projection", "none"))
        np.testing.assert_array_equal(first.x, second.x)
        assert "sum_c" not in first.values
        assert "keeps nothing whose sum stays 0" in first.absent["sum_c"]


def test_it_is_the_recursion_on_all_nodes_with_unit_rows():
    """ST-GT written out on all N nodes: W_r has the identity's rows and columns where a node does not take part."""
    problem, rounds = ridge(), 40
    changes = [Pause(3, 2, rounds=4), Crash(8, [1, 6]), Join(15, 6), Leave(20, 0), Join(26, [0, 1]), Pause(30, 0)]
    theta, d = problem.data["theta"], problem.data["d"]
    x, c = np.zeros((N, P)), np.zeros((N, P))
    members = set(range(N))
    for r in range(rounds):
        if r == 8:
            members -= {1, 6}
            here = sorted(members)
            c[here] -= c[here].mean(axis=0)
        elif r == 15:
            x[6], c[6] = x[sorted(members)].mean(axis=0), 0
            members |= {6}
        elif r == 20:
            members -= {0}
            c[sorted(members)] += c[0] / len(members)
        elif r == 26:
            x[[0, 1]], c[[0, 1]] = x[sorted(members)].mean(axis=0), 0
            members |= {0, 1}
        active = sorted(members - ({2} if 3 <= r < 7 else set()) - ({0} if r == 30 else set()))
        W = np.eye(N)
        W[np.ix_(active, active)] = stgt.topology.exponential(len(active)).matrix(r)
        h = x.copy()
        for i in active:
            for _ in range(TAU):
                h[i] = h[i] - GAMMA * (2 * (theta[i] @ h[i] - d[i]) * theta[i] + 0.5 * h[i] + c[i])
        z = (x - h) / (GAMMA * TAU)
        x, c = W @ h, c + (W @ z - z)
    trace = run(METHODS["ST-GT"], problem, rounds, changes)
    np.testing.assert_allclose(trace.x[0], x, atol=1e-12)
    np.testing.assert_allclose(trace.state["c"][0], c, atol=1e-12)
    here = sorted(members)
    off = x[here].mean(axis=0) - minimiser(problem, here)
    assert trace.residual[0, -1] == pytest.approx(off @ off, rel=1e-8)
    assert trace["consensus"][0, -1] == pytest.approx(((x[here] - x[here].mean(axis=0)) ** 2).sum(), rel=1e-8)


@st.composite
def sequences(draw):
    """Changes that can be made one after the other, of any kind, by 6 nodes of which 2 at least stay."""
    present, found = set(range(6)), []
    for r in sorted(draw(st.lists(st.integers(0, 11), max_size=6))):
        kind = draw(st.sampled_from([Join, Leave, Crash, Pause]))
        pool = sorted(set(range(6)) - present if kind is Join else present)
        most = len(pool) if kind in (Join, Pause) else len(pool) - 2
        if most < 1:
            continue
        nodes = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=most, unique=True))
        found.append(kind(r, nodes, draw(st.integers(1, 4))) if kind is Pause else kind(r, nodes))
        present = present | set(nodes) if kind is Join else present - set(nodes) if kind is not Pause else present
    return found, present


@settings(max_examples=30)
@given(drawn=sequences(), seed=st.integers(0, 100), which=st.integers(0, 5))
def test_what_sums_to_zero_does_so_after_every_change(drawn, seed, which):
    changes, present = drawn
    algorithm = [
        *METHODS.values(),
        stgt.ProxSkip(gamma=0.05, tau=2),
        stgt.MomentumTracking(gamma=0.05, momentum=0.5),
    ][which]
    graph = stgt.topology.random_matching if which % 2 else stgt.topology.ring
    trace = run(algorithm, quadratic(6, P, noise=0.1, seed=seed), 12, changes, graph, seeds=[seed], metrics=["sum_c"])
    size = sum(np.abs(value).sum() for value in trace.state.values())
    assert trace["sum_c"].max() <= 1e-12 * (1 + size)
    assert set(np.flatnonzero(trace.members[-1]).tolist()) == present
    assert trace.rounds.tolist() == list(range(13))


CHANGES = [Crash(3, 1), Leave(6, 6), Join(6, 1), Pause(9, [0], rounds=3), Crash(14, 2)]


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (stgt.Outer(stgt.STGT(beta=0.5), gamma=0.05, tau=2), quadratic(N, P, noise=0.1)),
        (stgt.LED(gamma=stgt.schedules.cosine(0.1, rounds=40), tau=2), ridge(noise=[0.1] * N)),
        (stgt.GTSAGA(gamma=0.05), logistic(N, P)),
        (stgt.KGT(gamma=0.05, tau=2, warm_start=True), logistic(N, P)),
    ],
    ids=["Outer", "LED", "GTSAGA", "KGT-warm"],
)
@pytest.mark.sampled(2)
def test_the_engines_agree(algorithm, problem):
    options = {"seeds": [0, 7], "dtype": "float64", "every": 4}
    fast, plain = (run(algorithm, problem, 18, CHANGES, engine=engine, **options) for engine in ("jax", "numpy"))
    assert plain.rounds.tolist() == fast.rounds.tolist() == [0, 4, 8, 12, 16, 18]
    assert list(fast) == list(plain)
    for name in plain:
        np.testing.assert_allclose(fast[name], plain[name], rtol=1e-10, atol=1e-10, err_msg=name)
    for name, value in plain.state.items():
        np.testing.assert_allclose(fast.state[name], value, rtol=1e-10, atol=1e-10, err_msg=name)


def test_without_changes_it_is_a_plain_run():
    problem, method = quadratic(N, P, noise=0.1), METHODS["ST-GT"]
    options = {"seeds": [3, 5], "engine": "numpy", "x0": np.ones(P)}
    plain = stgt.simulate(method, problem, stgt.topology.ring(N), 12, **options)
    trace = run(method, problem, 12, [], stgt.topology.ring, **options)
    for name in trace:
        np.testing.assert_allclose(trace[name], plain[name], rtol=1e-10, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(trace.x, plain.x, rtol=0, atol=1e-12)
    assert trace.diverged_at.tolist() == [-1, -1]


def test_a_node_keeps_its_own_noise():
    """Where nothing is mixed a node's path is its own: the same whoever else is there, and whatever its place is."""
    problem, method = quadratic(N, P, noise=0.3), stgt.DPSGD(gamma=0.05, tau=2)
    # They mix in round 19 for the first time, after the last one here.
    alone = [stgt.topology.sequence([*[np.eye(n)] * 19, np.full((n, n), 1 / n)]) for n in range(1, N + 1)]
    changes = [Crash(2, 0), Leave(4, [1, 5])]
    trace = run(method, problem, 9, changes, lambda n: alone[n - 1], seeds=[4])
    plain = stgt.simulate(method, problem, alone[-1], 9, seeds=[4], engine="numpy")
    here = [2, 3, 4, 6, 7]
    np.testing.assert_array_equal(trace.x[0, here], plain.x[0, here])


def test_stragglers_sit_out():
    """A node that takes part in every tenth round: it stands still between, and all come to the minimiser of all."""
    problem, rounds = ridge(), 901
    changes = [Pause(r, 2, rounds=9) for r in range(1, rounds, 10)]
    short, part = (run(METHODS["LED"], problem, r, [one for one in changes if one.round < r]) for r in (30, 21))
    np.testing.assert_array_equal(short.x[0, 2], part.x[0, 2])
    assert not np.array_equal(short.x[0, 3], part.x[0, 3])
    assert short.members.all()
    trace = run(METHODS["LED"], problem, rounds, changes, every=100)
    assert trace.residual[0, -1] < 1e-16
    # The problem has one fixed point only in the rounds of all nodes, so the error is of the rounds between, too.
    everyone = run(METHODS["LED"], problem, 10, [Pause(4, list(range(N)), rounds=3)])
    np.testing.assert_array_equal(everyone.residual[:, 4], everyone.residual[:, 7])


def test_who_is_a_member():
    changes = [Join(2, 5), Crash(4, 0), Leave(4, 1), Join(6, [0, 1])]
    trace = run(METHODS["ST-GT"], ridge(), 8, changes, members=[0, 1, 2])
    found = [np.flatnonzero(row).tolist() for row in trace.members]
    assert found == [[0, 1, 2]] * 2 + [[0, 1, 2, 5]] * 2 + [[2, 5]] * 2 + [[0, 1, 2, 5]] * 3
    assert repr(trace) == "ChurnTrace(ST-GT, 2 to 4 of 8 nodes, 4 changes, 1 seed, 8 rounds)"


def test_newcomers_begin_at_the_mean_with_a_correction_of_zero():
    problem, method = ridge(), METHODS["Outer(ST-GT)"]
    old = run(method, problem, 5, [], members=[0, 1, 2])
    trace = run(method, problem, 6, [Join(5, [4, 6]), Pause(5, range(7))], members=[0, 1, 2, 3, 5])
    before = run(method, problem, 5, [], members=[0, 1, 2, 3, 5])
    for name in ("x", "m"):
        mean = before.state[name][0, [0, 1, 2, 3, 5]].mean(axis=0)
        np.testing.assert_allclose(trace.state[name][0, [4, 6]], np.tile(mean, (2, 1)), atol=1e-15)
    np.testing.assert_array_equal(trace.state["c"][0, [4, 6]], 0.0)
    assert old.residual[0, 0] == pytest.approx((minimiser(problem, [0, 1, 2]) ** 2).sum(), rel=1e-10)


@pytest.mark.parametrize(
    "problem",
    [quadratic(N, P), ridge(), least_squares(N, P), logistic(N, P), logistic(N, P, weights="samples")],
    ids=str,
)
def test_the_problem_of_some_nodes(problem):
    """Its f is the mean of theirs, and its optimum has no gradient; L and mu still bound them."""
    part, x = problem_of(problem, [1, 4, 6]), np.arange(P) / 2.0
    np.testing.assert_allclose(part.gradients(x), problem.gradients(x)[[1, 4, 6]], atol=1e-14)
    assert np.linalg.norm(part.gradient(part.optimum)) < 1e-13
    if "ridge" in problem.name:
        np.testing.assert_allclose(part.optimum, minimiser(problem, [1, 4, 6]), atol=1e-13)
    assert (part.L, part.mu) == (problem.L, problem.mu)
    assert problem_of(problem, range(N)) is problem


def test_some_nodes_may_have_no_minimiser():
    A = np.stack([np.diag([1.0, 0.0]), np.diag([0.0, 1.0])])
    problem = stgt.problems.Quadratic(A, np.ones((2, 2)))
    assert np.isnan(problem_of(problem, [0]).optimum).all()
    unsolved = stgt.problems.logistic(np.eye(4), [0, 1, 0, 1], 4)
    assert problem_of(unsolved, [0, 1]).optimum is None


def test_random_churn():
    changes = random_churn(20, rate=0.5, rounds=2001, seed=1)
    assert random_churn(20, rate=0.5, rounds=2001, seed=1) == changes
    lost = [(change, node) for change in changes if not isinstance(change, Join) for node in change.nodes]
    # A member is lost with probability 0.005 a round; with 10 rounds away each is a member 20/21 of the time.
    expected = 2000 * 20 * 0.005 / (1 + 0.005 * 10)
    assert abs(len(lost) - expected) < 4 * np.sqrt(expected)
    crashed = sum(isinstance(change, Crash) for change, _ in lost)
    assert abs(crashed - len(lost) / 2) < 4 * np.sqrt(len(lost) / 4)
    left = {(change.round, node) for change, node in lost if change.round + 10 < 2001}
    assert {(one.round - 10, node) for one in changes if isinstance(one, Join) for node in one.nodes} == left
    few = random_churn(4, rate=50.0, rounds=50, least=3, crashes=0.0)
    here = 4
    for change in few:
        here += len(change.nodes) * (1 if isinstance(change, Join) else -1)
        assert isinstance(change, Join | Leave)
        assert 3 <= here <= 4


STGT = METHODS["ST-GT"]
WRONG = {
    "changes[1]: 3": ({"changes": [Crash(1, 2), 3]}, r"^changes\[1\]=3: give a Join, Leave, Crash, Pause or Repair"),
    "one change": ({"changes": Crash(1, 2)}, "^changes=.*give a list of changes"),
    "gone": ({"changes": [Crash(1, 2), Leave(2, 2)]}, r"^changes\[1\]\.nodes has 2, which is not a member at round 2"),
    "there": ({"changes": [Join(1, 2)]}, r"^changes\[0\]\.nodes has 2, which is a member at round 1"),
    "all": ({"changes": [Crash(1, range(N))]}, r"^changes\[0\]\.nodes are all members at round 1: at least one"),
    "late": ({"changes": [Crash(20, 2)]}, r"^changes\[0\]\.round=20: give a whole number from 0 to 9\."),
    "unknown node": ({"changes": [Crash(2, N)]}, r"^changes\[0\]\.nodes\[0\]=8: give a whole number from 0 to 7\."),
    "repair": ({"repair": "mean"}, "^repair='mean': choose from 'projection', 'none'"),
    "members": ({"members": [1, 1]}, "^members has 1 more than once"),
    "no members": ({"members": []}, "^members is empty"),
    "every": ({"every": 0}, "^every=0: give a whole number from 1 to 256"),
    "a topology": ({"topology": stgt.topology.ring(N)}, "^topology=.*give a function of the number of nodes"),
    "another size": (
        {"topology": lambda n: stgt.topology.ring(4)},
        r"^topology for 8 nodes is ring\(4\): give a function",
    ),
    "failing": ({"topology": lambda n: {}[n]}, r"^topology for 8 nodes raised KeyError: 8"),
    "server": ({"topology": stgt.topology.server}, r"^topology for 8 nodes is server\(8\)\. A node that leaves"),
    "Scaffold": ({"algorithm": stgt.Scaffold(gamma=0.1)}, "^algorithm is Scaffold.* needs more than sums of 0"),
    "LU-GT": ({"algorithm": stgt.LUGT(gamma=0.1)}, "^algorithm is LU-GT, which exchanges twice a round"),
    "engine": ({"engine": "torch"}, "^engine='torch': choose from"),
    "no gamma": ({"algorithm": stgt.STGT()}, "^gamma was left out of ST-GT"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_a_sentence(name):
    options, sentence = WRONG[name]
    given = {"algorithm": STGT, "problem": ridge(), "topology": stgt.topology.ring, "rounds": 10, **options}
    with pytest.raises(ValueError, match=sentence):
        simulate_churn(
            given.pop("algorithm"), given.pop("problem"), given.pop("topology"), given.pop("rounds"), **given
        )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Crash(-1, 2), "^round=-1: give a whole number of at least 0"),
        (lambda: Crash(1, []), "^nodes is empty"),
        (lambda: Leave(1, [2, 2]), "^nodes has 2 more than once"),
        (lambda: Join(1, "a"), r"^nodes\[0\]='a': give"),
        (lambda: Pause(1, 2, rounds=0), "^rounds=0: give a whole number of at least 1"),
        (lambda: random_churn(4, -0.1, 10), "^rate=-0.1: give a finite number of at least 0"),
        (lambda: random_churn(4, 0.1, 10, least=5), "^least=5: give a whole number from 1 to 4"),
    ],
)
def test_changes_are_checked(make, sentence):
    with pytest.raises(stgt.InputError, match=sentence):
        make()


def test_what_was_not_measured():
    trace = run(STGT, ridge(), 2, [], metrics=["residual"])
    with pytest.raises(KeyError, match=r"consensus.*left out of metrics"):
        trace["consensus"]
    with pytest.raises(KeyError, match="is not a measurement: choose from residual"):
        trace["frobnication"]
