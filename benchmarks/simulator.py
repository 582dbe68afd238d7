"""Speed and memory of the simulator, on one core: `make bench`.

Compare only ratios within one run: machines are noisy.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["OMP_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np
from rich.console import Console
from rich.table import Table

import stgt

N, P, TAU, GAMMA = 32, 10, 50, 0.4
ROUNDS_OF_METRIC = 500
SIZES = (12_500, 25_000, 50_000, 100_000)


def best(run, repeats: int = 5) -> float:
    """The shortest of a few times in seconds, which the machine's noise affects least."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def numpy_loop(problem: stgt.problems.Problem, W: np.ndarray, rounds: int) -> np.ndarray:
    """What you would write by hand: ST-GT on (n, p) arrays, float32, noise drawn one round at a time."""
    rng = np.random.default_rng(0)
    theta, d = (problem.data[name].astype(np.float32) for name in ("theta", "d"))
    W = W.astype(np.float32)
    x = np.zeros((N, P), np.float32)
    c = np.zeros_like(x)
    for _ in range(rounds):
        noise = np.float32((problem.sigma2 / P) ** 0.5) * rng.standard_normal((TAU, N, P), dtype=np.float32)
        start = x
        for t in range(TAU):
            residual = (theta * x).sum(axis=1) - d
            x = x - GAMMA * (2 * residual[:, None] * theta + 0.5 * x + noise[t] + c)
        z = (start - x) / (GAMMA * TAU)
        x, c = W @ x, c - z + W @ z
    return x


def speed(console: Console) -> None:
    problem, topology = stgt.problems.ridge(n=N, p=P, mu=0.5, noise=0.1), stgt.topology.exponential(N)
    quiet = stgt.problems.ridge(n=N, p=P, mu=0.5, noise=0.0)
    algorithm = stgt.STGT(gamma=GAMMA, tau=TAU)

    def simulate(rounds: int, seeds: int, **options):
        return lambda: stgt.simulate(algorithm, problem, topology, rounds, seeds, **options)

    start = time.perf_counter()
    simulate(1, 1)()
    compiling = time.perf_counter() - start
    rates = {
        "NumPy loop written by hand": 100 / best(lambda: numpy_loop(problem, topology.matrix(0), 100)),
        "reference (NumPy)": 20 / best(simulate(20, 1, engine="numpy")),
        "simulator, all measurements": 2000 / best(simulate(2000, 1)),
        "simulator, residual only": 2000 / best(simulate(2000, 1, metrics=["residual"])),
        "simulator, float64": 2000 / best(simulate(2000, 1, dtype="float64")),
        "simulator, noise=0": 2000 / best(lambda: stgt.simulate(algorithm, quiet, topology, 2000)),
        "simulator, 20 seeds at once": 20 * 200 / best(simulate(200, 20)),
    }
    table = Table(title=f"ST-GT on ridge, n={N}, p={P}, tau={TAU}, noise; first call {compiling:.1f} s")
    for heading in ("engine", "rounds/s and seed", "ratio"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / rates['NumPy loop written by hand']:.1f}")
    console.print(table)


def own_metric(console: Console) -> None:
    """The cost of the test accuracy of a perceptron on digits at every round, and of its forward pass alone."""
    import jax
    import jax.numpy as jnp
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(64, 32)) / 8, "v": rng.normal(size=(32, 10)) / 6}
    # Ten copies of the 517 test images, so that the measured time is large compared with the machine's noise.
    test_images, test_labels = np.tile(images[1280:], (10, 1)), np.tile(labels[1280:], 10)

    def logits(params, image):
        return jnp.tanh(image @ params["w"]) @ params["v"]

    def loss(params, sample):
        z = logits(params, sample[0])
        return jax.nn.logsumexp(z) - z[sample[1]]

    data = (images[:1280].reshape(16, 80, 64), labels[:1280].reshape(16, 80))
    problem, topology = stgt.problems.from_loss(loss, data, start, batch=8), stgt.topology.exponential(16)

    def accuracy(x):
        return (logits(problem.unravel(x), test_images).argmax(axis=1) == test_labels).mean()

    def run(metrics):
        return lambda: stgt.simulate(stgt.STGT(gamma=0.1, tau=5), problem, topology, ROUNDS_OF_METRIC, metrics=metrics)

    apart = jax.jit(accuracy)
    x = jnp.asarray(problem.start, jnp.float32)
    alone = best(lambda: [apart(x).block_until_ready() for _ in range(ROUNDS_OF_METRIC)], repeats=15)
    without = best(run(["consensus"]), repeats=15)
    measured = best(run(["consensus", {"accuracy": accuracy}]), repeats=15)
    table = Table(
        title=f"A perceptron on digits, 16 nodes, {ROUNDS_OF_METRIC} rounds; accuracy on {len(test_labels)} images"
    )
    for heading in ("run without", "run with accuracy", "forward passes alone", "added / alone"):
        table.add_column(heading, justify="right")
    added = (measured - without) / alone
    table.add_row(f"{without:.2f} s", f"{measured:.2f} s", f"{alone:.2f} s", f"{added:.2f}")
    console.print(table)


def scaling(console: Console) -> None:
    table = Table(title="ST-GT on ridge, p=10, tau=10, exponential graph, 100 rounds (without compiling)")
    for heading in ("nodes", "seconds", "µs per node and round", "peak memory"):
        table.add_column(heading, justify="right")
    for n in SIZES:
        command = [sys.executable, __file__, "--one", str(n)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        seconds, peak = float(printed[0]), float(printed[1])
        table.add_row(f"{n:,}", f"{seconds:.2f}", f"{1e6 * seconds / (100 * n):.2f}", f"{peak:.2f} GB")
    console.print(table)


def one_size(n: int) -> None:
    problem, topology = stgt.problems.ridge(n=n, p=P, mu=0.5, noise=0.1), stgt.topology.exponential(n)
    algorithm = stgt.STGT(gamma=0.2, tau=10)
    seconds = best(lambda: stgt.simulate(algorithm, problem, topology, 100), repeats=1)
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


if __name__ == "__main__":
    if "--one" in sys.argv:
        one_size(int(sys.argv[-1]))
    else:
        speed(Console())
        own_metric(Console())
        scaling(Console())
