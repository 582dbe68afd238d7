"""`check_topology`: a topology has the properties that it declares, on every engine."""

from __future__ import annotations

import numpy as np

from stgt._internal.checks import InputError
from stgt.simulator.drive import interrupts_as_ever
from stgt.simulator.instance import check_topology_object
from stgt.testing.report import Report, SkipError
from stgt.topology import Topology, check_matrix, period_contraction

DRAWS = 20  # the number of rounds that are checked of a schedule without a period
MOST_NODES = 2000  # for more, the dense matrices are too large
SAME = 1e-12


@interrupts_as_ever()
def check_topology(topology: Topology) -> Report:
    """Checks a topology by the same tests as those of the library.

    Each W_r must be stochastic, with the declared symmetry, period and degree. NumPy's matrices and JAX's kernels must
    agree, also for the transpose. The links must be counted correctly. The nodes must reach agreement.

    Args:
        topology: of up to 2,000 nodes. If it has no period, the first rounds of two runs are checked.

    Returns:
        The report; print it.

    Raises:
        CheckError: a check failed; its text is the report.
    """
    check_topology_object(topology)
    if topology.n > MOST_NODES:
        raise InputError(
            "topology", hint=f" has {topology.n} nodes: give a topology of the same kind with at most {MOST_NODES}."
        )
    report = Report(topology.name)
    report.run("every W_r is stochastic", lambda: _stochastic(topology))
    if report.passed:
        report.run("symmetry, period and degree as declared", lambda: _flags(topology))
        report.run("NumPy and JAX agree", lambda: _kernels(topology))
        report.run("links match the entries of W_r", lambda: _links(topology))
        report.run("the nodes reach agreement", lambda: _mixes(topology))
    return report.finish()


def _rounds(topology: Topology) -> list[tuple[int, int]]:
    """(r, seed) of the checked rounds."""
    if topology.period is None:
        return [(r, seed) for seed in (0, 7) for r in range(DRAWS)]
    return [(r, 0) for r in range(topology.period)]


def _stochastic(topology: Topology) -> str:
    for r, seed in _rounds(topology):
        W = topology.matrix(r, seed)
        assert W.shape == (topology.n, topology.n), f"W_{r} has shape {W.shape}, but there are {topology.n} nodes"
        check_matrix(W, f"W_{r}", row_stochastic=not topology.doubly_stochastic)
        if topology.has_push:
            check_matrix(topology.matrix(r, seed, pushed=True), f"C_{r}", column_stochastic=True)
    if topology.has_push:
        return f"R_r row-stochastic, C_r column-stochastic, {len(_rounds(topology))} rounds"
    return f"{'doubly ' if topology.doubly_stochastic else 'row-'}stochastic, {len(_rounds(topology))} rounds"


def _flags(topology: Topology) -> str:
    return " and ".join(dict.fromkeys(_flags_of(topology, pushed) for pushed in _ways(topology)))


def _ways(topology: Topology) -> tuple[bool, ...]:
    """Which matrices to check: C_r (pushed) as well as W_r, if there are two per round."""
    return (False, True) if topology.has_push else (False,)


def _flags_of(topology: Topology, pushed: bool) -> str:
    matrices = [topology.matrix(r, seed, pushed=pushed) for r, seed in _rounds(topology)]
    if topology.symmetric:
        worst = max(float(np.abs(W - W.T).max()) for W in matrices)
        assert worst <= SAME, f"symmetric=True is declared, but W_r differs from its transpose by {worst:.1e}"
    received = max(int((np.count_nonzero(W, axis=1) - (np.diag(W) != 0)).max()) for W in matrices)
    assert received <= topology.degree, (
        f"degree={topology.degree} is declared, but a node receives from {received} others"
    )
    if topology.period is not None:
        for r, W in enumerate(matrices):
            off = float(np.abs(topology.matrix(r + topology.period, pushed=pushed) - W).max())
            assert off == 0, (
                f"period={topology.period} is declared, but W_{r + topology.period} differs from W_{r} by {off:.1e}"
            )
    else:
        again = [topology.matrix(r, seed, pushed=pushed) for r, seed in _rounds(topology)]
        assert all(np.array_equal(*pair) for pair in zip(matrices, again, strict=True)), "W_r differs if computed again"
    return f"degree {topology.degree}, period {topology.period}"


def _kernels(topology: Topology) -> str:
    if topology.has_server:
        raise SkipError("the server's mean is a part of the method's round")
    if topology.period is None and not topology.random:
        raise SkipError("it never repeats, so it runs only on NumPy and torch")
    from stgt._internal.xla import jax, jnp
    from stgt.simulator.jax_ops import OPS, as_arrays, mix, push

    v = np.random.default_rng(0).normal(size=(topology.n, 2))
    worst = 0.0
    with jax.enable_x64(True):
        structure = as_arrays(topology.structure, np.dtype(np.float64))
        for back, pushed in ((False, False), (True, False), (False, True))[: 2 + topology.has_push]:
            by = push if pushed or (back and not topology.doubly_stochastic) else mix
            kernel = jax.jit(
                lambda s, seed, r, v, by=by, back=back, pushed=pushed: by(
                    OPS, s.pushing if pushed else s, seed, r, v, back
                )
            )
            for r, seed in _rounds(topology):
                W = topology.matrix(r, seed, pushed=pushed)
                graph_seed = jnp.uint32((topology.seed + seed) % 2**32)
                found = np.asarray(kernel(structure, graph_seed, jnp.int32(r), jnp.asarray(v)))
                worst = max(worst, float(np.abs(found - (W.T if back else W) @ v).max()))
    assert worst <= SAME, f"W_r v differs by {worst:.1e}"
    return f"within {worst:.1e}, for W_r and its transpose{', and C_r' if topology.has_push else ''}"


def _links(topology: Topology) -> str:
    total = 0.0
    for r, seed in _rounds(topology):
        for pushed in _ways(topology):
            W = topology.matrix(r, seed, pushed=pushed)
            expected = 2.0 * topology.sampled
            if not topology.has_server:
                expected = float(np.count_nonzero(W) - np.count_nonzero(np.diag(W)))
            found = topology.links(r, seed, pushed=pushed)
            matrix = f"{'C' if pushed else 'W'}_{r}"
            assert found == expected, f"it counts {found:g} links in round {r}, but {matrix} has {expected:g}"
            total += found
    return f"{total / len(_rounds(topology)):.3g} a round"


def _mixes(topology: Topology) -> str:
    if topology.has_push:
        return " and ".join(_settles(topology, pushed) for pushed in _ways(topology))
    if topology.period is not None:
        left = period_contraction(topology)
        assert left < 1 - 1e-12, "some nodes never receive from others: the product over a period is not connected"
        return f"{left:.3g} of the disagreement remains after a period"
    product, left = np.eye(topology.n), 1.0
    for r in range(50 * topology.n):
        product = topology.matrix(r) @ product
        left = float(np.linalg.norm(product - product.mean(axis=0), 2))
        if left < 0.1:
            return f"less than a tenth of the disagreement remains after {r + 1} rounds of run 0"
    raise AssertionError(f"after {50 * topology.n} rounds of run 0, {left:.2g} of the disagreement remains")


def _settles(topology: Topology, pushed: bool) -> str:
    """The part of the disagreement that remains per period asymptotically: the second largest |λ| of the product."""
    product, name = np.eye(topology.n), "C" if pushed else "R"
    for r in range(topology.period or 1):
        product = topology.matrix(r, pushed=pushed) @ product
    left = np.sort(np.abs(np.linalg.eigvals(product)))[-2:][0] if topology.n > 1 else 0.0
    assert left < 1 - 1e-9, f"the powers of {name} have no limit: give nodes a weight of their own on the diagonal"
    return f"{left:.3g} of the disagreement remains after a period of {name}"
