"""The compiled simulator against the NumPy reference, in float64: every algorithm on every kind of graph and oracle.

1e-10 is the promise; the two differ by the order of floating-point sums only.
"""

import numpy as np
import pytest

import stgt
from catalogue import directed_schedule, instances, logistic, quadratic, suited

N, P, ROUNDS = 8, 3, 12

TOPOLOGIES = {
    "static": stgt.topology.ring(N),
    "directed": stgt.topology.exponential(N),
    "time-varying": directed_schedule(N),
    "server": stgt.topology.server(N, sampled=3, seed=5),
}
PROBLEMS = {
    "noisy quadratic": quadratic(N, P, noise=0.1),
    "minibatch logistic": logistic(N, P),
}


def assert_same(algorithm, problem, topology, **options):
    found = {
        engine: stgt.simulate(
            algorithm, problem, topology, ROUNDS, seeds=[0, 7], engine=engine, dtype="float64", **options
        )
        for engine in ("jax", "numpy")
    }
    fast, plain = found["jax"], found["numpy"]
    assert list(fast) == list(plain)
    for name in plain:
        np.testing.assert_allclose(fast[name], plain[name], rtol=1e-10, atol=1e-10, err_msg=name)
    assert fast.state.keys() == plain.state.keys()
    for name in plain.state:
        np.testing.assert_allclose(fast.state[name], plain.state[name], rtol=1e-10, atol=1e-10, err_msg=name)
    np.testing.assert_array_equal(fast.diverged_at, plain.diverged_at)
    assert not np.array_equal(plain.x[0], plain.x[1]), "two seeds must give two runs"


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", instances())
@pytest.mark.sampled(24, each="topology")
def test_every_algorithm_on_every_kind_of_graph(name, topology):
    algorithm, graph = instances()[name], TOPOLOGIES[topology]
    problem = PROBLEMS["minibatch logistic" if algorithm.spec().oracle or "server" in topology else "noisy quadratic"]
    # What is measured costs a third of compiling: all that there is on one graph of each method, in turn.
    turn = (list(instances()).index(name) + list(TOPOLOGIES).index(topology)) % len(TOPOLOGIES)
    assert_same(algorithm, problem, suited(algorithm, graph), metrics=["residual"] if turn else None)


@pytest.mark.parametrize("oracle", ["exact", "noisy", "minibatch", "shuffled", "saga", "svrg"])
@pytest.mark.parametrize("name", ["STGT", "LUGT", "Scaffold-I", "KGT-warm"])
@pytest.mark.sampled(12)
def test_every_oracle(name, oracle):
    chosen = {
        "exact": stgt.oracles.Exact(),
        "noisy": stgt.oracles.Noisy(0.2),
        "minibatch": stgt.oracles.Minibatch(3),
        "shuffled": stgt.oracles.Shuffled(3),
        "saga": stgt.oracles.SAGA(),
        "svrg": stgt.oracles.SVRG(5),
    }[oracle]
    algorithm = instances()[name]
    problem = logistic(N, P)
    topology = stgt.topology.server(N, sampled=3)
    fast, plain = (
        stgt.simulate(algorithm, problem, topology, ROUNDS, oracle=chosen, engine=engine, dtype="float64")
        for engine in ("jax", "numpy")
    )
    np.testing.assert_allclose(fast.x, plain.x, rtol=1e-10, atol=1e-10)


LARGE = 70  # above the size up to which a dense product is used, so that rolls and neighbour lists are


KERNELS = [
    stgt.topology.exponential(LARGE),
    stgt.topology.one_peer_exponential(65),
    stgt.topology.torus(7, 10),
    stgt.topology.hypercuboid(72),
    stgt.topology.de_bruijn(81, 3),
    stgt.topology.base_graph(70, 2),
    stgt.topology.random_matching(LARGE + 1),
    stgt.topology.unreliable(stgt.topology.torus(7, 10), link=0.3, node=0.1),
    stgt.topology.unreliable(stgt.topology.complete(9), link=0.5),
    stgt.topology.complete(LARGE),
    stgt.topology.sequence(
        [
            stgt.topology.random_matching(LARGE, seed=3),
            stgt.topology.exponential(LARGE),
            stgt.topology.unreliable(stgt.topology.torus(7, 10), link=0.3),
            stgt.topology.one_peer_exponential(LARGE),
        ]
    ),
    stgt.topology.sequence([stgt.topology.torus(7, 10), stgt.topology.hypercuboid(LARGE)]),
    stgt.topology.any_of(stgt.topology.one_peer_exponential(LARGE), seed=2),
    stgt.topology.any_of([stgt.topology.ring(9), np.eye(9)[[*range(1, 9), 0]], np.eye(9)]),
    stgt.topology.schedule(9, lambda r: np.roll(np.eye(9), r % 4, axis=1) / 2 + np.eye(9) / 2, period=4),
]


@pytest.mark.parametrize("topology", KERNELS, ids=str)
@pytest.mark.sampled(8)
def test_every_kernel(topology):
    assert_same(stgt.STGT(gamma=0.05, tau=3), quadratic(topology.n, P, noise=0.1), topology)


@pytest.mark.parametrize("topology", [graph for graph in KERNELS if not graph.symmetric], ids=str)
@pytest.mark.sampled
def test_every_kernel_of_the_transpose(topology):
    assert_same(stgt.STGT(gamma=0.05, tau=3, adjoint=True), quadratic(topology.n, P, noise=0.1), topology)


@pytest.mark.parametrize("name", ["STGT-adjoint", "LUGT"])
@pytest.mark.sampled
def test_random_graphs_in_turn(name):
    """Two equal random items, one with a cycle of its own, and a plain matrix."""
    matching, failing = stgt.topology.random_matching(N, seed=4), stgt.topology.hypercuboid(N)
    items = [matching, stgt.topology.unreliable(failing, link=0.2), matching, directed_schedule(N).matrix(0)]
    assert_same(instances()[name], quadratic(N, P, noise=0.1), stgt.topology.sequence(items))


@pytest.mark.parametrize("name", ["LUGT", "ScaffoldPlus", "ProxSkip", "GTSAGA"])
@pytest.mark.parametrize("topology", [stgt.topology.random_matching(N, seed=3), stgt.topology.server(N)], ids=str)
@pytest.mark.sampled(each="topology")
def test_other_shapes_of_a_round(name, topology):
    assert_same(instances()[name], logistic(N, P), topology)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "Scaffold-I", "Scaffold-II", "ScaffoldPlus"])
@pytest.mark.sampled
def test_relay(name):
    assert_same(instances()[name], quadratic(N, P, noise=0.1), stgt.topology.relay(N, sampled=3))


def test_stepsizes_of_each_node():
    algorithm = stgt.AugDGM(gamma=np.linspace(0.02, 0.06, N))
    assert_same(algorithm, quadratic(N, P, noise=0.1), stgt.topology.ring(N))
    assert_same(algorithm, quadratic(N, P, noise=0.1), stgt.topology.server(N, sampled=3))


def test_first_values():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(N, P))
    options = {"x0": rng.normal(size=(N, P)), "state0": {"c": c - c.mean(axis=0)}}
    assert_same(instances()["STGT"], quadratic(N, P, noise=0.1), stgt.topology.ring(N), **options)


@pytest.mark.parametrize("name", ["STGT", "GTSAGA", "GTSVRG"])
@pytest.mark.sampled
def test_any_loss(name):
    """from_loss with nested parameters, integer labels and nodes of different size."""
    rng = np.random.default_rng(1)
    data = [
        {"a": rng.normal(size=(m, 2)).astype(np.float32), "y": rng.integers(0, 3, size=m)}
        for m in (2, 5, 3, 1, 4, 4, 2, 6)
    ]

    def loss(params, sample):
        import jax

        scores = jax.numpy.tanh(sample["a"] @ params["hidden"]) @ params["out"]
        return jax.nn.logsumexp(scores) - scores[sample["y"]] + 0.05 * sum((w**2).sum() for w in params.values())

    params = {"hidden": np.zeros((2, 2)), "out": np.zeros((2, 3))}
    problem = stgt.problems.from_loss(loss, data, params, batch=2)
    x0 = rng.normal(size=problem.p)
    assert_same(instances()[name], problem, stgt.topology.ring(N), x0=x0)
