"""The cost of `check`: CPU seconds after imports, for states of hundreds to tens of thousands of entries."""

import time

import stgt
from stgt import theory

LONG, SHORT = stgt.STGT(gamma=0.4, tau=50), stgt.STGT(gamma=0.05, tau=5)
# the algorithm, n and p of ridge, the graph
SETTINGS = {
    "README's spec": (LONG, 32, 10, lambda: stgt.topology.exponential(32, neighbors=3)),
    "exponential, n = 32": (LONG, 32, 10, lambda: stgt.topology.exponential(32)),
    "ring, n = 64": (LONG, 64, 10, lambda: stgt.topology.ring(64)),
    "exponential, n = 1,000": (stgt.STGT(gamma=0.1, tau=10), 1000, 10, lambda: stgt.topology.exponential(1000)),
    "Scaffold, 4 of 32": (stgt.Scaffold(gamma=0.4, tau=50), 32, 10, lambda: stgt.topology.server(32, sampled=4)),
    "random matchings, n = 16": (SHORT, 16, 4, lambda: stgt.topology.random_matching(16)),
}


def main() -> None:
    theory.check(stgt.STGT(gamma=0.1, tau=2), stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4))  # imports
    for name, (algorithm, n, p, graph) in SETTINGS.items():
        problem, topology = stgt.problems.ridge(n=n, p=p), graph()
        cpu, wall = time.process_time(), time.perf_counter()
        advice = theory.check(algorithm, problem, topology, target=0.02)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(f"{name}: {cpu:.1f} CPU s, {wall:.1f} s; radius {advice.radius:.6f}, largest {advice.largest_gamma:.4g}")


if __name__ == "__main__":
    main()
