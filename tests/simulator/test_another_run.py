"""A run goes on only as what it began as: anything else is refused in a sentence that names the difference."""

import numpy as np
import pytest

import stgt
from bits import assert_same_bits
from catalogue import logistic, quadratic

N, P = 4, 3
STGT = stgt.STGT(gamma=0.05, tau=2)
OWN = {"largest": lambda x: abs(x).max()}


def begin(algorithm=STGT, problem=None, topology=None, rounds=4, **options) -> stgt.Trace:
    problem = logistic(N, P) if problem is None else problem
    topology = stgt.topology.random_matching(N, seed=1) if topology is None else topology
    if "resume" not in options:
        options = {"engine": "numpy", "seeds": [0, 3], **options}
    return stgt.simulate(algorithm, problem, topology, rounds, **options)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> stgt.Trace:
    return stgt.Trace.load(begin().save(tmp_path_factory.mktemp("begun") / "run.stgt"))


def loss_of(weight: float):
    def loss(x, sample):
        return weight * ((x - sample) ** 2).sum()

    return stgt.problems.from_loss(loss, np.arange(8.0).reshape(4, 2), np.zeros(2))


OTHERS = {
    "stepsize": ({"algorithm": stgt.STGT(gamma=0.06, tau=2)}, "gamma is 0.06, and was 0.05"),
    "a schedule": (
        {"algorithm": stgt.STGT(gamma=stgt.schedules.cosine(0.05, rounds=30), tau=2)},
        "gamma is {'schedule': 'cosine', .*, and was 0.05",
    ),
    "a function": (
        {"algorithm": stgt.STGT(gamma=lambda r: 0.05, tau=2)},
        r"gamma is {'function': \[0.05, .*, and was 0.05",
    ),
    "tau": ({"algorithm": stgt.STGT(gamma=0.05, tau=3)}, "tau is 3, and was 2"),
    "an option": (
        {"algorithm": stgt.STGT(gamma=0.05, tau=2, adjoint=True)},
        "algorithm.adjoint is True, and was False",
    ),
    "method": ({"algorithm": stgt.DPSGD(gamma=0.05, tau=2)}, "algorithm.name is 'DPSGD', and was 'STGT'"),
    "method with equal measurements": (
        {"algorithm": stgt.FlexGT(gamma=0.05, tau=2)},
        "algorithm.name is 'FlexGT', and was 'STGT'",
    ),
    "data": ({"problem": logistic(N, P, seed=1)}, "problem.* is .*, and was"),
    "l2": ({"problem": logistic(N, P, l2=0.2)}, "problem.* is .*, and was"),
    "batch": ({"problem": logistic(N, P, batch=3)}, "problem.batch is 3, and was 2"),
    "dimension": ({"problem": logistic(N, P + 1)}, "problem.* is .*, and was"),
    "problem": ({"problem": quadratic(N, P)}, "problem.name is 'Quadratic.*, and was 'logistic"),
    "graph": ({"topology": stgt.topology.ring(N)}, "topology.name is 'ring.*, and was 'random_matching"),
    "the graph's seed": ({"topology": stgt.topology.random_matching(N, seed=2)}, "topology.seed is 2, and was 1"),
    "oracle": ({"oracle": stgt.oracles.Exact()}, "oracle.name is 'Exact', and was 'Minibatch'"),
    "an oracle's option": ({"oracle": stgt.oracles.Minibatch(3)}, "oracle.batch is 3, and was 2"),
    "number of seeds": ({"seeds": 3}, r"seeds=3, but the run to resume has \[0, 3\]: leave seeds out"),
    "seeds": ({"seeds": [0, 4]}, r"seeds=\[0, 4\], but the run to resume has \[0, 3\]"),
    "seeds in an array": ({"seeds": np.array([0, 4])}, r"seeds=.*, but the run to resume has \[0, 3\]"),
    "precision": ({"dtype": "float32"}, "dtype is 'float32', and was 'float64'"),
    "engine": ({"engine": "jax"}, "engine is 'jax', and was 'numpy'"),
    "fewer metrics": ({"metrics": ["loss"]}, r"measured is \['loss'\], and was"),
    "a metric more": ({"metrics": OWN}, "measured is .*'largest'.*, and was"),
    "x0": ({"x0": np.zeros(P)}, "x0 was given with resume: the run has begun already"),
    "state0": ({"state0": {"c": np.zeros((N, P))}}, "state0 was given with resume"),
    "too many rounds": ({"rounds": 2**30}, "give fewer than 2..31 steps in all"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_run(other, trace):
    options, words = OTHERS[other]
    for resume in (trace, begin()):
        with pytest.raises(ValueError, match=words) as caught:
            begin(**{"resume": resume, **options})
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(".")


def test_what_is_given_again_or_left_out_is_the_same(trace):
    """All that the run began with may be said again, in any of its forms."""
    whole = begin(rounds=7)
    for options in (
        {},
        {"seeds": [0, 3]},
        {"seeds": np.array([0, 3])},
        {"engine": "reference", "dtype": "float64"},
        {"oracle": stgt.oracles.Minibatch(2)},
        {"metrics": list(trace.measured)},
    ):
        assert_same_bits(begin(rounds=3, resume=trace, **options), whole)
    assert begin(rounds=3, resume=trace, metrics=list(trace.measured)[::-1]).x.tobytes() == whole.x.tobytes()
    assert_same_bits(begin(rounds=3, resume=[trace]), whole)


@pytest.mark.parametrize("given", ["run.stgt", 3, [], [None], {}])
def test_something_else_to_go_on_from(given):
    with pytest.raises(ValueError, match=r"resume=.*: give a Trace"):
        begin(resume=given)


@pytest.mark.parametrize("engine", ["jax", "numpy"])
@pytest.mark.sampled
def test_a_changed_loss(engine):
    """By its name and data it is the same problem; f where the run stands gives it away, whatever is measured."""
    before = begin(problem=loss_of(0.5), engine=engine, metrics=["consensus"])
    assert loss_of(0.5).fingerprint == loss_of(0.6).fingerprint
    with pytest.raises(ValueError, match=r"f at its last models is .*, and was .* Give the problem that it began with"):
        begin(problem=loss_of(0.6), resume=before)
    before = begin(problem=loss_of(0.5), engine=engine)
    assert_same_bits(begin(problem=loss_of(0.5), resume=before), begin(problem=loss_of(0.5), rounds=8, engine=engine))


@pytest.mark.parametrize("engine", ["jax", "numpy"])
@pytest.mark.sampled
def test_a_changed_metric(engine, tmp_path):
    before = begin(metrics=OWN, engine=engine)
    with pytest.raises(ValueError, match=r"largest at its last models is .*, and was"):
        begin(metrics={"largest": lambda x: 2 * abs(x).max()}, resume=before)
    with pytest.raises(ValueError, match=r"measured is .*'furthest'.*, and was .*'largest'"):
        begin(metrics={"furthest": OWN["largest"]}, resume=before)
    assert_same_bits(begin(resume=before), begin(metrics=OWN, rounds=8, engine=engine))
    loaded = stgt.Trace.load(before.save(tmp_path / "run.stgt"))
    with pytest.raises(ValueError, match="measures 'largest' by a function of your own, which a file cannot hold"):
        begin(resume=loaded)


def test_a_function_of_the_round_that_changed(tmp_path):
    """For the rounds that were made it must say what it said; for those to come it is free."""
    past = begin(algorithm=stgt.STGT(gamma=lambda r: 0.05, tau=2))
    loaded = stgt.Trace.load(past.save(tmp_path / "run.stgt"))
    with pytest.raises(ValueError, match=r"gamma.function is \[0.05, 0.05, 0.05, 0.04\], and was \[0.05, 0.05, 0.05,"):
        begin(algorithm=stgt.STGT(gamma=lambda r: 0.05 if r < 3 else 0.04, tau=2), resume=loaded)
    later = stgt.STGT(gamma=lambda r: 0.05 if r < 4 else 0.04, tau=2)
    assert_same_bits(begin(algorithm=later, resume=loaded), begin(algorithm=later, rounds=8))


def test_traces_of_different_lengths():
    parts = (STGT, logistic(N, P), stgt.topology.ring(N))
    one, other = (stgt.sweep(*parts, rounds, grid={"gamma": [0.05, 0.1]}, engine="numpy") for rounds in (3, 4))
    with pytest.raises(ValueError, match="have 3 and 4 rounds: give equally long ones"):
        stgt.sweep(*parts, 2, grid={"gamma": [0.05, 0.1]}, resume=[one[0], other[1]])


def test_a_method_that_insists_on_its_oracle():
    """On a problem without samples it has the exact gradient, and goes on with that."""
    parts = (stgt.GTSAGA(gamma=0.05), quadratic(N, P), stgt.topology.ring(N))
    before = stgt.simulate(*parts, 4, engine="numpy")
    assert_same_bits(stgt.simulate(*parts, 3, resume=before), stgt.simulate(*parts, 7, engine="numpy"))


def test_a_changed_function_of_the_round():
    """A schedule without a period is known by the matrices that it gave."""
    graphs = [stgt.topology.ring(4), stgt.topology.complete(4)]
    options = {"problem": quadratic(4, 2), "engine": "numpy"}
    before = begin(topology=stgt.topology.schedule(4, lambda r: graphs[r % 2]), **options)
    with pytest.raises(ValueError, match=r"topology\.matrices is .*, and was"):
        begin(
            topology=stgt.topology.schedule(4, lambda r: graphs[(r + 1) % 2]), problem=options["problem"], resume=before
        )
    same = stgt.topology.schedule(4, lambda r: graphs[0] if r % 2 == 0 else graphs[1])
    assert begin(topology=same, problem=options["problem"], resume=before).rounds == 2 * before.rounds
