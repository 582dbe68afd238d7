"""Topologies drawn anew each round: matchings, a server that calls some workers, links and nodes that fail."""

from __future__ import annotations

from typing import Any

from stgt._internal.checks import InputError, check_count, check_number, check_seed
from stgt._internal.registry import register
from stgt.topology.base import Topology
from stgt.topology.structure import Matching, Relayed, Sampled, Unreliable


@register
def random_matching(n: int, seed: int = 0) -> Topology:
    """Nodes meet in random pairs, every pairing equally likely, and the pair averages.

    w_ii = w_ij = 1/2 where i meets j. With odd n one node, a different one each round, stays alone.

    Args:
        n: number of nodes.
        seed: of the draws.

    Returns:
        A random, symmetric topology of degree 1.

    Reference: Boyd et al., "Randomized gossip algorithms", 2006.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    return Topology(f"random_matching({n})", n, Matching(n), period=None, degree=min(n - 1, 1), seed=seed)


@register
def server(n: int, sampled: int | None = None, seed: int = 0) -> Topology:
    """A server calls s of n workers each round, S_r uniformly at random: they average, the others keep what they have.

    W_r = (1/s) e_{S_r} e_{S_r}ᵀ + I − diag(e_{S_r}), doubly stochastic; J for s = n.

    Args:
        n: number of workers.
        sampled: s, how many are called each round; all by default.
        seed: of the draws.

    Returns:
        A symmetric topology: random, or static where all are called.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    s = n if sampled is None else _check_sampled(n, sampled)
    name = f"server({n})" if s == n else f"server({n}, {s} sampled)"
    return Topology(name, n, Sampled(n, s), period=1 if s == n else None, degree=s - 1, seed=seed)


@register
def relay(n: int, sampled: int, seed: int = 0) -> Topology:
    """The server as the paper sees it: the workers of one round pass their mean on to the workers of the next.

    W_r = (1/s) e_{S_{r+1}} e_{S_r}ᵀ + I − diag(e_{S_{r+1}}), applied at the end of round r; it is the paper's
    W_{r+1}. Rows sum to one, columns do not unless s = n. E[W_r] = (s/n) J + (1 − s/n) I, whose second eigenvalue is
    1 − s/n.

    Args:
        n: number of workers.
        sampled: s, how many work in a round.
        seed: of the draws.

    Returns:
        A random, row-stochastic topology; J for s = n.

    Reference: Eq_Wr of the ST-GT paper, 2512.01732.
    """
    n, seed = check_count(n, "n"), check_seed(seed)
    s = _check_sampled(n, sampled)
    everybody = s == n
    return Topology(
        f"relay({n}, {s} sampled)",
        n,
        Relayed(n, s),
        doubly_stochastic=everybody,
        symmetric=everybody,
        period=1 if everybody else None,
        degree=min(s, n - 1),
        seed=seed,
    )


@register
def unreliable(topology: Topology, link: float = 0.0, node: float = 0.0, seed: int = 0) -> Topology:
    """A symmetric topology whose links and nodes fail at random, anew each round.

    A link works with probability (1 − link)(1 − node)²; the weight of a lost one goes to both ends' own, so W_r stays
    symmetric and doubly stochastic. A node that cannot be reached keeps what it has.

    Args:
        topology: symmetric and peer to peer. If it is random itself, `seed` replaces its own.
        link: probability that a link fails, in [0, 1).
        node: probability that a node cannot be reached, in [0, 1).
        seed: of the draws.

    Returns:
        A random, symmetric topology of the same degree.
    """
    link, node, seed = _check_failure(link, "link"), _check_failure(node, "node"), check_seed(seed)
    if not isinstance(topology, Topology):
        raise InputError("topology", hint=f" is a {type(topology).__name__}: give a Topology such as ring(8).")
    base = topology.structure.neighbour_lists(topology.name)
    if not topology.symmetric:
        raise ValueError(
            f"{topology} is directed: a lost one-way link cannot be made up for without breaking the column sums; "
            "give a symmetric topology."
        )
    name = f"unreliable({topology}, link={link:g}, node={node:g})"
    return Topology(name, topology.n, Unreliable(base, link, node), period=None, degree=topology.degree, seed=seed)


def _check_sampled(n: int, sampled: Any) -> int:
    s = check_count(sampled, "sampled")
    if s > n:
        raise InputError("sampled", s, f"at most all n={n} workers can be called in a round.")
    return s


def _check_failure(value: Any, name: str) -> float:
    probability = check_number(value, name, least=0.0, most=1.0)
    if probability == 1.0:
        raise InputError(name, 1, "nothing would ever get through; give a probability in [0, 1).")
    return probability
