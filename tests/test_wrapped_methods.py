"""Options of the methods beyond the paper, and a method inside another: what is refused, files, specs and costs."""

import re
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import stgt
from bits import assert_same_bits
from catalogue import logistic, quadratic
from stgt.simulator.instance import check_runs
from stgt.study.spec import Named, build_algorithm

BETA = "give a finite number above 0 and up to 1."
WRONG = {
    "beta=0": (lambda: stgt.STGT(beta=0), f"beta=0: {BETA}"),
    "beta=1.5": (lambda: stgt.STGT(beta=1.5), f"beta=1.5: {BETA}"),
    "beta of K-GT": (lambda: stgt.KGT(beta=1.5), f"beta=1.5: {BETA}"),
    "beta of FlexGT": (lambda: stgt.FlexGT(beta=-0.1), f"beta=-0.1: {BETA}"),
    "beta of Scaffold": (lambda: stgt.Scaffold(beta=0), f"beta=0: {BETA}"),
    "beta of Scaffold⁺": (lambda: stgt.ScaffoldPlus(beta=1.5), f"beta=1.5: {BETA}"),
    "beta=3 of LED": (lambda: stgt.LED(beta=3), "beta=3: give a finite number above 0 and up to 2."),
    "beta=0 of LED": (lambda: stgt.LED(beta=0), "beta=0: give a finite number above 0 and up to 2."),
    "mixing_steps": (lambda: stgt.FlexGT(mixing_steps=0), "mixing_steps=0: give a whole number of at least 1."),
    "momentum=1": (lambda: stgt.Outer(stgt.STGT(), momentum=1), "momentum=1: give a finite number of at least 0"),
    "momentum of DiLoCo": (lambda: stgt.DiLoCo(momentum=-0.1), "momentum=-0.1: give a finite number of at least 0"),
    "momentum tracked": (lambda: stgt.MomentumTracking(momentum=1), "momentum=1: give a finite number of at least 0"),
    "beta_1": (lambda: stgt.GTAdam(beta_1=1), "beta_1=1: give a finite number of at least 0"),
    "alpha": (lambda: stgt.FedDyn(alpha=0), "alpha=0: give a finite number above 0."),
    "lr=0": (lambda: stgt.Outer(stgt.STGT(), lr=0), "lr=0: give a finite number above 0."),
    "twice": (lambda: stgt.Outer(stgt.Outer(stgt.STGT())), "ST-GT + outer momentum has a state variable m too: wrap"),
    "an m": (lambda: stgt.Outer(stgt.GTAdam()), "GTAdam has a state variable m too: wrap the method inside it."),
    "around Adam": (
        lambda: stgt.Outer(stgt.FedAdam()),
        "FedAdam has a state variable m too: wrap the method inside it.",
    ),
    "Adam around": (
        lambda: stgt.Adaptive(stgt.DiLoCo()),
        "DiLoCo has a state variable m too: wrap the method inside it.",
    ),
    "rule": (lambda: stgt.Adaptive(stgt.STGT(), rule="lamb"), "rule='lamb': choose from 'adam', 'yogi', 'adagrad'"),
    "lr of FedAdam": (lambda: stgt.FedAdam(lr=0), "lr=0: give a finite number above 0."),
    "beta_1 of FedAdam": (lambda: stgt.FedAdam(beta_1=1), "beta_1=1: give a finite number of at least 0"),
    "beta_2 of FedYogi": (lambda: stgt.FedYogi(beta_2=-0.1), "beta_2=-0.1: give a finite number of at least 0"),
    "epsilon=0": (lambda: stgt.Adaptive(stgt.LED(), epsilon=0), "epsilon=0: give a finite number above 0."),
    "a coin": (lambda: stgt.Outer(stgt.ProxSkip(p=0.5)), "ProxSkip may skip the communication of a round"),
    "a class": (lambda: stgt.Outer(stgt.STGT), "give an instance of the method to wrap, such as STGT(tau=20)."),
    "a name": (lambda: stgt.Outer("STGT"), "method='STGT': give an instance of the method to wrap"),
    "two gammas": (
        lambda: stgt.Outer(stgt.STGT(gamma=0.1), gamma=0.2),
        "gamma=0.2 and gamma=0.1 of the method inside: give it once.",
    ),
    "two taus": (
        lambda: stgt.Outer(stgt.STGT(tau=5), tau=6),
        "tau=6 and tau=5 of the method inside: give it once.",
    ),
    "tau that it refuses": (lambda: stgt.Outer(stgt.EXTRA(), tau=3), "tau=3: EXTRA takes one gradient step a round"),
    "tau of exact diffusion": (lambda: stgt.ExactDiffusion(tau=2), "tau=2: exact diffusion takes one gradient step"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused_in_one_sentence(name):
    make, words = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        make()
    said = str(caught.value)
    assert said.endswith(".")
    assert ". " not in said


def test_named_forms_have_their_method():
    for kind in (stgt.DiLoCo, stgt.NoLoCo, stgt.FedAvgM, stgt.FedAdam, stgt.FedYogi):
        with pytest.raises(TypeError, match="method"):
            kind(method=stgt.STGT())
        assert isinstance(kind().method, stgt.FedAvg)
    with pytest.raises(TypeError, match="rule"):
        stgt.FedAdam(rule="yogi")
    assert (stgt.FedAdam().rule, stgt.FedYogi().rule) == ("adam", "yogi")


def test_gamma_and_tau_may_be_given_inside_or_outside():
    inside = stgt.Outer(stgt.STGT(gamma=0.1, tau=5, beta=0.25))
    assert inside == stgt.Outer(stgt.STGT(beta=0.25), gamma=0.1, tau=5)
    assert inside == stgt.Outer(stgt.STGT(gamma=0.1, tau=5, beta=0.25), gamma=0.1, tau=5)
    assert (inside.gamma, inside.tau, inside.inner) == (0.1, 5, stgt.STGT(gamma=0.1, tau=5, beta=0.25))
    other = replace(inside, gamma=0.2, tau=3)
    assert other.inner == stgt.STGT(gamma=0.2, tau=3, beta=0.25)


def test_d_squared_is_refused_where_an_eigenvalue_is_too_small():
    """The ring of six has 1/3 + (2/3)cos(π) = −1/3, and half of (I + W) has 1/3."""
    ring, problem, method = stgt.topology.ring(6), quadratic(6, 2), stgt.ExactDiffusion(gamma=0.1, lazy=False)
    words = r" needs the eigenvalues of W above -0\.333, and ring\(6\) has -0\.333: give lazier weights"
    with pytest.raises(ValueError, match=rf"^D²{words}"):
        stgt.simulate(method, problem, ring, 1)
    with pytest.raises(ValueError, match=rf"^D² \+ outer momentum{words}"):
        stgt.simulate(stgt.Outer(method), problem, ring, 1)
    lazy = stgt.topology.from_matrix((np.eye(6) + ring.matrix(0)) / 2)
    stgt.simulate(method, problem, lazy, 1, engine="numpy")
    stgt.simulate(stgt.ExactDiffusion(gamma=0.1), problem, ring, 1, engine="numpy")


@pytest.mark.parametrize(
    ("method", "label"),
    [
        (stgt.EXTRA(), "EXTRA"),
        (stgt.ExactDiffusion(), "exact diffusion"),
        (stgt.ExactDiffusion(lazy=False), "D²"),
        (stgt.ProxSkip(tau=3), "ProxSkip"),
        (stgt.Outer(stgt.EXTRA()), "EXTRA + outer momentum"),
    ],
    ids=repr,
)
def test_methods_for_symmetric_weights_are_refused_on_directed_graphs(method, label):
    """At small steps their maps have the eigenvalues ω ± i√(ω(1 − ω)), ω = (1 + λ)/2 or λ: beyond 1 on that ring."""
    problem, words = quadratic(6, 2), rf"^{re.escape(label)} is for symmetric W, and .* is directed: .* Use STGT, or "
    placed = replace(method, gamma=0.01)
    for graph in (stgt.topology.ring(6, directed=True), stgt.topology.one_peer_exponential(6)):
        with pytest.raises(ValueError, match=words):
            stgt.simulate(placed, problem, graph, 1)
        with pytest.raises(ValueError, match=words):
            stgt.compare([placed], problem, graph, 1)
        with pytest.raises(ValueError, match=words):
            stgt.theory.spectral_radius(placed, problem, graph)
        with pytest.raises(ValueError, match=words):
            check_runs(method, graph, "trainer")
    both = stgt.topology.from_matrix((graph.matrix(0) + graph.matrix(0).T) / 2)
    assert np.isfinite(stgt.simulate(placed, problem, both, 50, engine="numpy").residual).all()


COSTS = {  # gradients, vectors, up, down, buffers at tau = 5, or 1 where it is the only one
    "relaxed ST-GT": (stgt.STGT(tau=5, beta=0.25), (5, 2, 2, 2, 4)),
    "FlexGT, three exchanges": (stgt.FlexGT(tau=5, mixing_steps=3), (5, 6, 6, 6, 4)),
    "LED": (stgt.LED(tau=5), (5, 1, 1, 1, 3)),
    "exact diffusion": (stgt.ExactDiffusion(), (1, 1, 1, 1, 3)),
    "EXTRA": (stgt.EXTRA(), (1, 1, 1, 1, 3)),
    "FedDyn": (stgt.FedDyn(tau=5), (5, 2, 1, 2, 5)),
    "Momentum Tracking": (stgt.MomentumTracking(), (1, 2, 2, 2, 4)),
    "GTAdam": (stgt.GTAdam(), (1, 2, 2, 2, 5)),
    "outer ST-GT": (stgt.Outer(stgt.STGT(tau=5)), (5, 2, 2, 2, 5)),
    "outer LED": (stgt.Outer(stgt.LED(tau=5)), (5, 1, 1, 1, 5)),
    "outer Scaffold⁺": (stgt.Outer(stgt.ScaffoldPlus(tau=5)), (5, 2, 1, 2, 5)),
    "DiLoCo": (stgt.DiLoCo(tau=5), (5, 1, 1, 1, 4)),
    "NoLoCo": (stgt.NoLoCo(tau=5), (5, 1, 1, 1, 4)),
    "FedAvgM": (stgt.FedAvgM(tau=5), (5, 1, 1, 1, 4)),
    "FedAdam": (stgt.FedAdam(tau=5), (5, 1, 1, 1, 5)),
    "FedYogi": (stgt.FedYogi(tau=5), (5, 1, 1, 1, 5)),
    "adaptive Scaffold⁺": (stgt.Adaptive(stgt.ScaffoldPlus(tau=5)), (5, 2, 1, 2, 6)),
    "adaptive LED": (stgt.Adaptive(stgt.LED(tau=5)), (5, 1, 1, 1, 6)),
}


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_those_of_the_documentation(name):
    algorithm, expected = COSTS[name]
    cost = algorithm.cost()
    assert (cost.gradients, cost.vectors, cost.up, cost.down, cost.buffers) == expected


LIBRARIES = {
    "NumPy": lambda values: np.asarray(values, dtype=np.float32),
    "JAX": lambda values: jnp.asarray(values, dtype=np.float32),
    "torch": lambda values: torch.tensor(values, dtype=torch.float32),
}


@pytest.mark.parametrize("values", [[0.5, -2.0], 0.5], ids=["vector", "number"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_an_adaptive_step_stays_in_single_precision(rule, library, values):
    make, method = LIBRARIES[library], stgt.Adaptive(stgt.FedAvg(), rule=rule)
    state = method.init(make(values))
    after = method.step(make(values), make(values) * 0.9, state)
    assert {str(one.dtype).removeprefix("torch.") for one in (*state.values(), *after.values())} == {"float32"}


# -- a step of one's own ------------------------------------------------------------------------------------------


@stgt.register
@dataclass(frozen=True, kw_only=True)
class PartOfTheWay(stgt.algorithms.OuterStep):
    """x ← a + share (x⁺ − a): what an outer step of lr = share without momentum is."""

    share: float = 0.5
    remembers = ()

    def step(self, start, merged, state):
        return {"x": start + self.share * (merged - start)}


@pytest.mark.parametrize("inside", [stgt.LED(gamma=0.05, tau=3), stgt.ScaffoldPlus(gamma=0.05, tau=3)], ids=repr)
@pytest.mark.parametrize("engine", ["numpy", "jax"])
@pytest.mark.sampled(each="engine")
def test_a_step_of_one_s_own_around_any_method(inside, engine):
    graph = stgt.topology.server(6, sampled=3) if inside.spec().server_fields else stgt.topology.ring(6)
    one, other = (
        stgt.simulate(method, quadratic(6, 3, noise=0.1), graph, 8, engine=engine, dtype="float64").x
        for method in (PartOfTheWay(inside, share=0.3), stgt.Outer(inside, lr=0.3, momentum=0.0))
    )
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    assert stgt.theory.check(PartOfTheWay(inside, share=0.3), quadratic(6, 3), graph, stepsizes=False).basis == "exact"


@pytest.mark.thorough
def test_a_step_of_one_s_own_is_held_to_what_ours_are():
    report = stgt.testing.check_algorithm(PartOfTheWay(stgt.ScaffoldPlus(gamma=0.05, tau=3)))
    assert all(check.holds for check in report.checks)


# -- files --------------------------------------------------------------------------------------------------------

WRAPPED = {
    "Outer": stgt.Outer(stgt.STGT(beta=0.25, adjoint=True), gamma=0.05, tau=3, momentum=0.4, nesterov=False),
    "Outer, scheduled": stgt.Outer(stgt.LED(beta=0.5), gamma=stgt.schedules.inverse(0.05, delay=3), tau=2),
    "DiLoCo": stgt.DiLoCo(gamma=0.05, tau=3, lr=0.5),
    "Adaptive": stgt.Adaptive(stgt.LED(beta=0.5), gamma=0.05, tau=3, rule="yogi"),
    "FedAdam": stgt.FedAdam(gamma=0.05, tau=3, beta_2=0.9),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_trace_with_a_method_inside_is_known_again_and_goes_on(name, tmp_path):
    algorithm, problem, graph = WRAPPED[name], logistic(4), stgt.topology.ring(4)

    def run(rounds, **options):
        return stgt.simulate(algorithm, problem, graph, rounds, [3], engine="numpy", **options)

    loaded = stgt.Trace.load(run(3).save(tmp_path / "run.stgt"))
    assert loaded.algorithm == algorithm
    assert loaded.algorithm.inner == algorithm.inner
    assert_same_bits(run(4, resume=loaded), run(7))
    other = replace(algorithm, lr=0.9)
    with pytest.raises(ValueError, match=r"lr is 0\.9, and was"):
        stgt.simulate(other, problem, graph, 4, [3], engine="numpy", resume=loaded)


def test_another_method_inside_is_another_run(tmp_path):
    problem, graph = logistic(4), stgt.topology.ring(4)
    one, other = (stgt.Outer(stgt.STGT(beta=beta), gamma=0.05, tau=3) for beta in (0.25, 0.5))
    loaded = stgt.Trace.load(stgt.simulate(one, problem, graph, 2, engine="numpy").save(tmp_path / "run.stgt"))
    with pytest.raises(ValueError, match=r"beta is 0\.5, and was 0\.25"):
        stgt.simulate(other, problem, graph, 2, engine="numpy", resume=loaded)


# -- specs --------------------------------------------------------------------------------------------------------


def test_a_spec_names_the_method_inside():
    given = {"name": "Outer", "lr": 0.5, "tau": 4, "method": {"name": "STGT", "beta": 0.25}}
    assert build_algorithm(Named(**given)) == stgt.Outer(stgt.STGT(beta=0.25), lr=0.5, tau=4)
    assert build_algorithm(Named(name="DiLoCo", tau=4)) == stgt.DiLoCo(tau=4)
    given = {"name": "Adaptive", "rule": "yogi", "method": {"name": "ScaffoldPlus", "tau": 4, "gamma_c": 0.5}}
    assert build_algorithm(Named(**given)) == stgt.Adaptive(stgt.ScaffoldPlus(tau=4, gamma_c=0.5), rule="yogi")
    for name in ("FedAvgM", "FedAdam", "FedYogi"):
        assert build_algorithm(Named(name=name, tau=4, lr=0.5)) == getattr(stgt, name)(tau=4, lr=0.5)


BAD_SPECS = {
    "wrong name inside": ({"name": "Outer", "method": {"name": "LEDD"}}, "algorithm.method.name='LEDD': choose from"),
    "wrong option inside": (
        {"name": "Outer", "method": {"name": "STGT", "mixing_steps": 2}},
        "algorithm.method.mixing_steps",
    ),
    "bad value inside": ({"name": "Outer", "method": {"name": "STGT", "beta": 2}}, "beta=2"),
    "no method": ({"name": "Outer"}, "algorithm.method was left out: Outer needs it."),
    "a word": ({"name": "Outer", "method": "STGT"}, "method='STGT': give an instance of the method to wrap"),
    "DiLoCo's": ({"name": "DiLoCo", "method": {"name": "STGT"}}, "algorithm.method: DiLoCo takes"),
    "FedAdam's": ({"name": "FedAdam", "rule": "yogi"}, "algorithm.rule: FedAdam takes"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_wrong_spec_is_a_sentence(name):
    given, words = BAD_SPECS[name]
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        build_algorithm(Named(**given))
    assert str(caught.value).endswith((".", "?"))
