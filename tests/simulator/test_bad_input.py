"""Bad input gets one clear sentence: what was given, what is allowed, which argument to change."""

import numpy as np
import pytest

import stgt
from catalogue import quadratic

PROBLEM = quadratic(4, 2)
SAMPLES = stgt.problems.least_squares(np.eye(13, 2), np.ones(13), n=4)  # four at one node, three at the others
RING = stgt.topology.ring(4)
STGT = stgt.STGT(gamma=0.1, tau=2)
NAN = np.full((4, 2), np.nan)

CASES = {
    "gamma zero": (lambda: stgt.STGT(gamma=0.0), "gamma=0"),
    "gamma negative": (lambda: stgt.Scaffold(gamma=-0.1), "gamma=-0.1"),
    "gamma nan": (lambda: stgt.STGT(gamma=float("nan")), "gamma=nan"),
    "gamma a word": (lambda: stgt.STGT(gamma="big"), "gamma='big'"),
    "gamma of a node": (lambda: stgt.AugDGM(gamma=[0.1, -0.1]), r"gamma\[1\]=-0.1"),
    "gammas of too few nodes": (
        lambda: stgt.simulate(stgt.AugDGM(gamma=[0.1, 0.1]), PROBLEM, RING, 1),
        "gamma has 2 stepsizes",
    ),
    "gamma left out": (lambda: stgt.simulate(stgt.STGT(tau=3), PROBLEM, RING, 1), "gamma was left out"),
    "tau zero": (lambda: stgt.STGT(gamma=0.1, tau=0), "tau=0"),
    "tau a fraction": (lambda: stgt.STGT(gamma=0.1, tau=2.5), "tau=2.5"),
    "tau of a one-step method": (lambda: stgt.DSGT(gamma=0.1, tau=3), "one gradient step a round"),
    "snapshot": (lambda: stgt.FlexGT(gamma=0.1, snapshot="middle"), "'first', 'last'"),
    "option": (lambda: stgt.Scaffold(gamma=0.1, option="III"), "'I', 'II'"),
    "probability": (lambda: stgt.ProxSkip(gamma=0.1, p=1.5), "p=1.5"),
    "gamma_g": (lambda: stgt.Scaffold(gamma=0.1, gamma_g=0), "gamma_g=0"),
    "gamma_c": (lambda: stgt.ScaffoldPlus(gamma=0.1, gamma_c=-1), "gamma_c=-1"),
    "W not stochastic": (lambda: stgt.topology.from_matrix(np.ones((3, 3))), "row 0 sums to 3"),
    "too many sampled": (lambda: stgt.topology.server(4, sampled=5), "sampled=5"),
    "n mismatch": (lambda: stgt.simulate(STGT, PROBLEM, stgt.topology.ring(5), 1), "n=5 nodes, but problem has n=4"),
    "row-stochastic graph": (
        lambda: stgt.simulate(STGT, PROBLEM, stgt.topology.relay(4, sampled=2), 1),
        "needs doubly stochastic",
    ),
    "not a topology": (lambda: stgt.simulate(STGT, PROBLEM, "ring", 1), "topology='ring'"),
    "not a problem": (lambda: stgt.simulate(STGT, 3, RING, 1), "problem=3"),
    "not an instance": (lambda: stgt.simulate(stgt.STGT, PROBLEM, RING, 1), "give an instance"),
    "rounds": (lambda: stgt.simulate(STGT, PROBLEM, RING, -1), "rounds=-1"),
    "seeds": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, seeds=0), "seeds=0"),
    "a seed twice": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, seeds=[1, 2, 3] * 10), "seeds has 1 more than once"),
    "no seeds": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, seeds=[]), "seeds is empty"),
    "engine": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, engine="torch"), "engine='torch'"),
    "dtype": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, dtype="float16"), "dtype='float16'"),
    "metrics": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, metrics=["speed"]), "metrics='speed'"),
    "metric that is not there": (
        lambda: stgt.simulate(stgt.FedAvg(gamma=0.1), PROBLEM, RING, 1, metrics=["tracking"]),
        "tracks no gradient",
    ),
    "x0 shape": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, x0=np.zeros(3)), "x0 has shape"),
    "x0 nan": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, x0=NAN), "x0 holds nan"),
    "different starts with a server": (
        lambda: stgt.simulate(
            stgt.FedAvg(gamma=0.1), PROBLEM, stgt.topology.server(4), 1, x0=np.arange(8.0).reshape(4, 2)
        ),
        "has one for all",
    ),
    "state0 field": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, state0={"y": np.zeros(2)}), "state0 has 'y'"),
    "state0 off balance": (
        lambda: stgt.simulate(STGT, PROBLEM, RING, 1, state0={"c": np.ones(2)}),
        "Σ_i c_i must be 0",
    ),
    "oracle without samples": (
        lambda: stgt.simulate(STGT, PROBLEM, RING, 1, oracle=stgt.oracles.Minibatch(2)),
        "draws samples",
    ),
    "to stop without a target": (
        lambda: stgt.compare([STGT], PROBLEM, RING, 1, stop=True),
        "stop=True without a target: give target=…, a value of residual to reach",
    ),
    "a pass over too few samples": (
        lambda: stgt.simulate(STGT, SAMPLES, RING, 1, oracle=stgt.oracles.Shuffled(4)),
        r"oracle=Shuffled\(batch=4\): a node has 3 samples; give a batch of at most 3\.",
    ),
    "saga of noise": (lambda: stgt.simulate(stgt.GTSAGA(gamma=0.1), quadratic(4, 2, 0.1), RING, 1), "draws samples"),
    "oracle of a method that has its own": (
        lambda: stgt.simulate(stgt.GTSAGA(gamma=0.1), PROBLEM, RING, 1, oracle=stgt.oracles.Exact()),
        "leave oracle out",
    ),
    "oracle a word": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, oracle="exact"), "oracle='exact'"),
    "oracle a class": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, oracle=stgt.oracles.Exact), "give an instance"),
    "metrics a word": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, metrics="residual"), "give a list of names"),
    "state0 a list": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, state0=[1]), "state0 is a list"),
    "x0 ragged": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, x0=[[1, 2], [1]]), "x0 is not an array"),
    "progress": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, progress=3), "progress=3"),
    "too many steps": (lambda: stgt.simulate(STGT, PROBLEM, RING, 2**30), "fewer than"),
    "a flag that is a word": (lambda: stgt.STGT(gamma=0.1, adjoint="no"), "adjoint='no'"),
    "an option that is a list": (lambda: stgt.Scaffold(gamma=0.1, option=[1]), "option="),
    "state0 and warm start": (
        lambda: stgt.simulate(
            stgt.Scaffold(gamma=0.1, warm_start=True), PROBLEM, stgt.topology.server(4), 1, state0={"c": np.zeros(2)}
        ),
        "leave one out",
    ),
    "different c with a server": (
        lambda: stgt.simulate(
            stgt.ScaffoldPlus(gamma=0.1),
            PROBLEM,
            stgt.topology.server(4, sampled=2),
            1,
            state0={"c": [[1, 0], [-1, 0], [2, 0], [-2, 0]]},
        ),
        "has one for all",
    ),
    "control variates on a row-stochastic graph": (
        lambda: stgt.simulate(
            stgt.Scaffold(gamma=0.1),
            PROBLEM,
            stgt.topology.from_matrix(
                [[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], row_stochastic=True
            ),
            1,
        ),
        "only row-stochastic",
    ),
    "grid a list": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid=[0.1]), "give a dict"),
    "grid of one value": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={"gamma": 0.1}), "give a list of values"),
    "grid of two forms": (
        lambda: stgt.sweep(stgt.AugDGM(gamma=0.1), PROBLEM, RING, 1, grid={"gamma": [0.1, (0.1,) * 4]}),
        "in one form",
    ),
    "grid name": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={"gama": [0.1]}), "grid has 'gama'"),
    "a checkpoint of several programs": (
        lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={"tau": [1, 2]}, checkpoint="run.stgt"),
        "checkpoint was given, but tau in the grid needs several programs",
    ),
    "grid value": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={"gamma": [0.1, 0.0]}), "gamma=0"),
    "grid empty": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={"gamma": []}), "is empty"),
    "noise": (lambda: stgt.problems.ridge(noise=-1), "noise=-1"),
    "noise a word": (lambda: stgt.problems.ridge(noise="large"), "noise='large'"),
    "noise of too few nodes": (lambda: stgt.problems.ridge(4, 2, noise=[0.1, 0.1, 0.1]), r"noise has shape \(3,\)"),
    "noise of a node": (lambda: stgt.problems.ridge(2, 2, noise=[0.1, -0.1]), r"noise\[1\]=-0.1"),
    "noise ragged": (lambda: stgt.problems.ridge(2, 2, noise=[[1, 0], [1]]), "noise is not an array"),
    "noise nan": (lambda: stgt.problems.ridge(2, 2, noise=[0.1, np.nan]), "noise holds nan"),
    "covariance of another dimension": (lambda: stgt.problems.ridge(4, 2, noise=np.eye(3)), "noise has shape"),
    "covariances of other nodes": (lambda: stgt.problems.ridge(4, 2, noise=[np.eye(2)]), "noise has shape"),
    "noise of four axes": (lambda: stgt.problems.ridge(4, 2, noise=np.ones((1, 4, 2, 2))), "noise has shape"),
    "covariance not symmetric": (lambda: quadratic(4, 2, [[1, 0.1], [0, 1]]), "noise is not symmetric"),
    "covariance not definite": (lambda: quadratic(4, 2, [[1, 2], [2, 1]]), "noise has eigenvalue -1, "),
    "covariance of a node not definite": (
        lambda: stgt.problems.ridge(2, 2, noise=[np.eye(2), -np.eye(2)]),
        "noise has eigenvalue -1 at node 1",
    ),
    "noise_kind": (lambda: stgt.problems.ridge(noise_kind="vector"), "'isotropic', 'scalar', 'labels'"),
    "noise_kind of a covariance": (
        lambda: stgt.problems.ridge(4, 2, noise=np.eye(2), noise_kind="scalar"),
        "leave noise_kind out",
    ),
    "labels of a quadratic": (
        lambda: stgt.problems.Quadratic([[[1]]], [[1]], 0.1, noise_kind="labels"),
        "noise_kind='labels': choose from 'isotropic', 'scalar'",
    ),
    "oracle of another problem's noise": (
        lambda: stgt.simulate(STGT, PROBLEM, RING, 1, oracle=stgt.oracles.ProblemNoise(1)),
        "leave oracle out",
    ),
    "rank": (lambda: stgt.oracles.ProblemNoise(0), "rank=0"),
    "scale": (lambda: stgt.problems.ridge(scale="p"), "scale='p'"),
    "mu": (lambda: stgt.problems.ridge(mu=0), "mu=0"),
    "A shape": (lambda: stgt.problems.Quadratic(np.ones((2, 3, 2)), np.ones((2, 3))), "square symmetric"),
    "A nan": (lambda: stgt.problems.Quadratic(np.full((2, 1, 1), np.nan), np.ones((2, 1))), "A holds nan"),
    "A not symmetric": (lambda: stgt.problems.Quadratic([[[1, 2], [0, 1]]], [[1, 1]]), "not symmetric"),
    "A not definite": (lambda: stgt.problems.Quadratic([[[-1]]], [[1]]), "no unique minimum"),
    "b shape": (lambda: stgt.problems.Quadratic(np.ones((2, 1, 1)), np.ones((3, 1))), "b has shape"),
    "features nan": (lambda: stgt.problems.logistic([[np.nan], [1]], [0, 1], 2), "features holds nan"),
    "labels": (lambda: stgt.problems.logistic([[1], [1], [2]], [0, 1, 2], 2), "exactly two"),
    "values that are words": (lambda: stgt.problems.least_squares([[1], [2]], ["a", "b"], 2), "labels is not an array"),
    "values by label": (
        lambda: stgt.problems.least_squares([[1], [2]], [1, 2], 2, partition="label"),
        "partition='label': choose from 'iid', 'sorted'",
    ),
    "partition a number": (
        lambda: stgt.problems.least_squares([[1], [2]], [1, 2], 2, partition=3),
        "partition=3: give",
    ),
    "negative l2": (lambda: stgt.problems.least_squares([[1], [2]], [1, 2], 2, l2=-1), "l2=-1"),
    "labels shape": (lambda: stgt.problems.logistic([[1], [1]], [0, 1, 1], 2), "labels has shape"),
    "partition": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], 2, partition="random"), "partition='random'"),
    "empty partition": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], partition=[[0, 1], []]), "is empty"),
    "a sample at two nodes": (
        lambda: stgt.problems.logistic([[1], [1]], [0, 1], partition=[[0], [1], [1]]),
        "partition gives sample 1 to nodes 1 and 2",
    ),
    "a sample twice": (
        lambda: stgt.problems.least_squares([[1], [1], [2]], [0, 1, 2], partition=[[1], [2, 0, 2]]),
        "partition gives sample 2 to node 1 twice",
    ),
    "weights": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], 2, weights="size"), "weights='size': choose from"),
    "partition outside": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], partition=[[0], [2]]), "outside"),
    "too many nodes": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], 3), "empty partition"),
    "n and partition": (lambda: stgt.problems.logistic([[1], [1]], [0, 1], 3, partition=[[0], [1]]), "n=3"),
    "n left out": (lambda: stgt.problems.logistic([[1], [1]], [0, 1]), "n was left out"),
    "classes": (lambda: stgt.problems.by_label([0, 1, 0, 1], 2, classes=3), "classes=3"),
    "labels left to nobody": (lambda: stgt.problems.by_label([0, 1, 2, 3], 2, classes=1), "labels unused"),
    "dirichlet alpha": (lambda: stgt.problems.dirichlet([0, 1], 2, alpha=0), "alpha=0"),
    "dirichlet that leaves a node empty": (
        lambda: stgt.problems.dirichlet([0] * 20, 20, alpha=0.01),
        "empty partition",
    ),
    "no data": (lambda: stgt.problems.from_loss(lambda x, s: 0.0, [], 1), "data is empty"),
    "a node without data": (
        lambda: stgt.problems.from_loss(lambda x, s: 0.0, [np.ones((2, 1)), np.ones((0, 1))], 1),
        "empty partition",
    ),
    "data nan": (lambda: stgt.problems.from_loss(lambda x, s: 0.0, [NAN], 1), "not finite"),
    "loss not a function": (lambda: stgt.problems.from_loss(None, [np.ones((2, 1))], 1), "loss=None"),
    "loss not a scalar": (
        lambda: stgt.problems.from_loss(lambda x, s: x, [np.ones((2, 2))], 2),
        "must return a scalar",
    ),
    "loss of another size": (lambda: stgt.problems.from_loss(lambda x, s: x @ s, [np.ones((2, 2))], 3), "must return"),
    "optimum": (lambda: stgt.problems.from_loss(lambda x, s: x @ s, [np.ones((2, 2))], 2, optimum=[1]), "optimum has"),
    "stacked data that disagree": (
        lambda: stgt.problems.from_loss(lambda x, s: 0.0, (np.ones((2, 3)), np.ones((3, 3))), 1),
        "the same n",
    ),
    "partition of fractions": (
        lambda: stgt.problems.logistic([[1], [1]], [0, 1], partition=[[0.7], [1.2]]),
        "whole numbers",
    ),
    "labels nan": (lambda: stgt.problems.by_label([0, 1, np.nan, 1], 2, classes=2), "not finite"),
    "variance": (lambda: stgt.oracles.Noisy(-1), "variance=-1"),
    "batch": (lambda: stgt.oracles.Minibatch(0), "batch=0"),
    "gamma as text": (
        lambda: stgt.STGT(gamma="0.05"),
        "gamma='0.05' is text: drop the quotes, and give a number above 0",
    ),
    "tau as text": (lambda: stgt.STGT(tau="2"), "tau='2' is text: drop the quotes, and give a whole number"),
    "value of a short x": (lambda: PROBLEM.value([1.0]), r"x has shape \(1,\): give \(2,\), one model"),
    "value at several x": (lambda: PROBLEM.value(np.ones((4, 2))), r"x has shape \(4, 2\): give \(2,\), one model"),
    "gradient of a number": (lambda: PROBLEM.gradient(1.0), r"x has shape \(\): give \(2,\), one model"),
    "gradients of a column": (
        lambda: PROBLEM.gradients(np.ones((4, 1))),
        r"x has shape \(4, 1\): give \(2,\), one model, or \(4, 2\), one for each node",
    ),
    "constants of a method": (
        lambda: stgt.theory.constants(STGT, PROBLEM, RING),
        r"problem is the algorithm ST-GT: constants takes \(problem, topology, tau\) only",
    ),
    "constants of a list": (
        lambda: stgt.theory.constants(PROBLEM, [RING], 2),
        r"topology=\[ring\(4\)\]: give a Topology",
    ),
    "a dict of methods": (
        lambda: stgt.compare({"mine": STGT}, PROBLEM, RING, 1),
        r"algorithms is a dict: give a list of the methods, list\(algorithms.values\(\)\)",
    ),
    "a loss with numpy": (
        lambda: stgt.problems.from_loss(lambda x, s: np.maximum(x, 0).sum(), np.zeros((4, 2)), 1),
        "use jax.numpy instead of numpy",
    ),
    "a loss with an if": (
        lambda: stgt.problems.from_loss(lambda x, s: x.sum() if x[0] > 0 else -x.sum(), np.zeros((4, 2)), 1),
        "jnp.where instead of an if",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_sentence(name):
    attempt, words = CASES[name]
    with pytest.raises(ValueError, match=words) as caught:
        attempt()
    sentence = str(caught.value)
    assert sentence.endswith((".", "?")), sentence
    assert "\n" not in sentence


MISSPELT = {
    "a method's": (lambda: stgt.STGT(gama=0.1), r"STGT\(\) has no option 'gama': it takes gamma, .* mean 'gamma'"),
    "a wrapper's": (lambda: stgt.Outer(stgt.STGT(), momentun=0.1), "did you mean 'momentum'"),
    "a topology's": (lambda: stgt.topology.ring(8, direted=True), "it takes n, directed; did you mean 'directed'"),
    "a problem's": (lambda: stgt.problems.ridge(nn=8), "did you mean 'n'"),
    "an oracle's": (lambda: stgt.oracles.Minibatch(bach=8), "did you mean 'batch'"),
    "simulate's": (lambda: stgt.simulate(STGT, PROBLEM, RING, 1, seedz=3), "did you mean 'seeds'"),
    "sweep's": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, gird={}), "did you mean 'grid'"),
    "what sweep hands on": (lambda: stgt.sweep(STGT, PROBLEM, RING, 1, grid={}, metric=[]), "did you mean 'metrics'"),
    "compare's": (lambda: stgt.compare([STGT], PROBLEM, RING, 1, targt=3), "did you mean 'target'"),
    "nothing like it": (lambda: stgt.topology.ring(8, colour=1), r"no option 'colour': it takes n, directed\.$"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_option(name):
    attempt, words = MISSPELT[name]
    with pytest.raises(TypeError, match=words):
        attempt()


def test_positional_arguments_are_refused():
    with pytest.raises(TypeError):
        stgt.STGT(0.1)


class TestTheWarmStartTrap:
    """Scaffold⁺ conserves c − (γ_c n/s) mean(own): the usual warm start c = mean(own) breaks it unless γ_c = s/n,
    and converges to ∇f(x_∞) = (1 − s/n) ∇f(x_0)."""

    SERVER = stgt.topology.server(4, sampled=2)

    def test_refused(self):
        trap = stgt.ScaffoldPlus(gamma=0.05, tau=2, gamma_c=1.0, warm_start=True)
        with pytest.raises(ValueError, match="converges to a wrong point"):
            stgt.simulate(trap, PROBLEM, self.SERVER, 1)
        with pytest.raises(ValueError, match="converges to a wrong point"):
            stgt.sweep(trap, PROBLEM, self.SERVER, 1, grid={"gamma_c": [0.5, 1.0]})

    def test_refused_by_hand(self):
        g = PROBLEM.gradients(np.zeros(2))
        with pytest.raises(ValueError, match="wrong point"):
            stgt.simulate(
                stgt.ScaffoldPlus(gamma=0.05, tau=2), PROBLEM, self.SERVER, 1, state0={"own": g, "c": g.mean(axis=0)}
            )

    def test_right_starts_converge(self):
        g = PROBLEM.gradients(np.zeros(2))
        runs = [
            stgt.simulate(algorithm, PROBLEM, self.SERVER, 3000, dtype="float64", state0=start)
            for algorithm, start in (
                (stgt.ScaffoldPlus(gamma=0.05, tau=2), {"own": g, "c": 2 * g.mean(axis=0)}),  # n/s = 2
                (stgt.ScaffoldPlus(gamma=0.05, tau=2, gamma_c=0.5, warm_start=True), None),
                (stgt.Scaffold(gamma=0.05, tau=2, warm_start=True), None),
            )
        ]
        for trace in runs:
            assert trace.residual[0, -1] < 1e-18
