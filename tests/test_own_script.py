"""A method, a schedule and a problem of a user's script (examples/own_method.py) run everywhere that ours do."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import own_node
import stgt
from stgt import cli
from stgt._internal.registry import ALGORITHMS, PROBLEMS, TOPOLOGIES, import_script

ROOT = Path(__file__).parents[1]
SCRIPT, SPEC = ROOT / "examples" / "own_method.py", ROOT / "examples" / "own_method.toml"
ROUNDS, TAU, GAMMA, BETA, P = own_node.ROUNDS, own_node.TAU, own_node.GAMMA, own_node.BETA, own_node.P


@pytest.fixture(scope="module", autouse=True)
def script():
    import_script(SCRIPT)


def literal(problem: stgt.Problem, matrices: list[np.ndarray], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """OneVector as it is written, node by node: h from tau steps x ← x − γ(∇f_i(x) + c); x ← W h;
    c ← c + β(h − W h)/(γτ)."""
    A, b = problem.data["A"], problem.data["b"]
    x, c = np.zeros((problem.n, problem.p)), np.zeros((problem.n, problem.p))
    for r in range(rounds):
        h = x.copy()
        for i in range(problem.n):
            for _ in range(TAU):
                h[i] = h[i] - GAMMA * (A[i] @ h[i] - b[i] + c[i])
        x = matrices[r % len(matrices)] @ h
        c = c + BETA * (h - x) / (GAMMA * TAU)
    return x, c


def breathing(n: int) -> list[np.ndarray]:
    """The two matrices of the script's schedule, written out."""
    found = []
    for own in (0.5, 0.75):
        W = own * np.eye(n)
        for i in range(n):
            W[i, (i + 1) % n] += (1 - own) / 2
            W[i, (i - 1) % n] += (1 - own) / 2
        found.append(W)
    return found


@pytest.mark.parametrize("n", [2, 5])
def test_numpy_and_jax_equal_the_literal_recursion(n):
    problem, graph = PROBLEMS["own_least_squares"](n, P, 0.0), TOPOLOGIES["breathing"](n)
    x, c = literal(problem, breathing(n), ROUNDS)
    method = ALGORITHMS["OneVector"](gamma=GAMMA, tau=TAU, beta=BETA)
    for engine in ("numpy", "jax"):
        trace = stgt.simulate(method, problem, graph, ROUNDS, engine=engine, dtype="float64")
        np.testing.assert_allclose(trace.x[0], x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(trace.state["c"][0], c, rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_two_torch_processes_equal_the_literal_recursion(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    nodes = [
        subprocess.Popen(
            [sys.executable, own_node.__file__, str(SCRIPT), str(tmp_path / f"{rank}.json")],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for node in nodes:
        _, errors = node.communicate(timeout=120)
        assert node.returncode == 0, errors
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    x, c = literal(PROBLEMS["own_least_squares"](2, P, 0.0), breathing(2), ROUNDS)
    np.testing.assert_allclose([one["x"] for one in found], x, rtol=0, atol=1e-10)
    np.testing.assert_allclose([one["c"] for one in found], c, rtol=0, atol=1e-10)


def test_it_is_predicted():
    """The radius of the literal recursion's own matrix, and a long simulation within its interval."""
    n = 4
    problem, graph = PROBLEMS["own_least_squares"](n, 2, 0.05), TOPOLOGIES["breathing"](n)
    method = ALGORITHMS["OneVector"](gamma=GAMMA, tau=TAU, beta=BETA)
    # The noiseless recursion is affine in (x, c): its columns from unit vectors, less where zero goes.
    size = n * 2

    def period(v: np.ndarray) -> np.ndarray:
        x, c = v[:size].reshape(n, 2), v[size:].reshape(n, 2)
        A, b = problem.data["A"], problem.data["b"]
        for W in breathing(n):
            h = x
            for _ in range(TAU):
                h = h - GAMMA * (np.einsum("nij,nj->ni", A, h) - b + c)
            x, c = W @ h, c + BETA * (h - W @ h) / (GAMMA * TAU)
        return np.concatenate([x.ravel(), c.ravel()])

    zero = period(np.zeros(2 * size))
    M = np.stack([period(unit) - zero for unit in np.eye(2 * size)], axis=1)
    moduli = np.sort(np.abs(np.linalg.eigvals(M)))[::-1]
    np.testing.assert_allclose(moduli[:2], 1.0, rtol=0, atol=1e-9)  # the sums of c's two coordinates, which stay 0
    radius = stgt.theory.spectral_radius(method, problem, graph)
    np.testing.assert_allclose(radius, moduli[2] ** 0.5, rtol=1e-9)
    expected = stgt.theory.steady_state(method, problem, graph)
    assert expected.bias < 1e-20
    ends = stgt.simulate(method, problem, graph, 2000, seeds=30, dtype="float64").tail("residual")
    assert abs(ends.mean() - expected.residual) < 5 * ends.std(ddof=1) / np.sqrt(len(ends))


def test_what_sums_to_zero_is_found_where_it_is_not_declared():
    from dataclasses import dataclass, replace

    @dataclass(frozen=True, kw_only=True)
    class Silent(ALGORITHMS["OneVector"]):
        def spec(self):
            return replace(super().spec(), state=[stgt.StateVar("c")])

    problem, graph = PROBLEMS["own_least_squares"](4, 2, 0.05), TOPOLOGIES["breathing"](4)
    declared = ALGORITHMS["OneVector"](gamma=GAMMA, tau=TAU, beta=BETA)
    silent = Silent(gamma=GAMMA, tau=TAU, beta=BETA)
    for predict in (stgt.theory.spectral_radius, lambda *run: stgt.theory.steady_state(*run).residual):
        np.testing.assert_allclose(
            predict(silent, problem, graph), predict(declared, problem, graph), rtol=1e-9, atol=0
        )


def test_a_spec_file_finds_it(tmp_path):
    runner = CliRunner()
    found = runner.invoke(cli.app, ["check", "--import", str(SCRIPT), str(SPEC)])
    assert found.exit_code == 0, found.output
    assert "OneVector on schedule(8, period=2): exact" in found.output
    assert re.search(r"stable\s+│ yes", found.output)
    listed = runner.invoke(cli.app, ["list", "--import", str(SCRIPT)])
    assert all(name in listed.output for name in ("OneVector", "FedCM", "breathing", "own_least_squares"))


def test_a_spec_file_that_imports_nothing_is_one_sentence():
    code = f"import sys; from stgt.cli import main; sys.argv = ['stgt', 'check', {str(SPEC)!r}]; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"stgt: SPEC \S+: problem\.name='own_least_squares': choose from .*\n", done.stderr)


def test_a_server_method_on_flower():
    """FedCM in the paper's variables: h ← h − η(α∇f_i(h) + (1 − α)Δ) with η = γ/α, then Δ is the mean over the called
    workers of (x − h)/(ητ), and x the mean of h. Flower's clients are in this process."""
    import torch
    from flwr.app import ArrayRecord

    from stgt.flower import Strategy, Task, client_app, run_in_process

    n, rounds, beta = 6, 8, 0.3
    problem, server = PROBLEMS["own_least_squares"](n, P, 0.0), stgt.topology.server(n, sampled=2, seed=3)
    A, b = problem.data["A"], problem.data["b"]

    def new_model() -> torch.nn.Module:
        model = torch.nn.Module()
        model.x = torch.nn.Parameter(torch.zeros(P, dtype=torch.float64))
        return model

    def setup(context, config):
        i, model = int(context.node_config["partition-id"]), new_model()
        own_A, own_b = torch.from_numpy(A[i]), torch.from_numpy(b[i])

        def loss(model, batch):
            return 0.5 * model.x @ own_A @ model.x - own_b @ model.x

        return Task(model, torch.optim.SGD(model.parameters(), lr=GAMMA), [None] * TAU, loss)

    strategy = Strategy(ALGORITHMS["FedCM"](tau=TAU, beta=beta), server)
    result = run_in_process(strategy, client_app(setup), ArrayRecord(new_model().state_dict()), num_rounds=rounds)
    alpha = 1 - beta
    eta, x, delta = GAMMA / alpha, np.zeros(P), np.zeros(P)
    for r in range(rounds):
        ends = []
        for i in np.flatnonzero(server.active(r)):
            h = x
            for _ in range(TAU):
                h = h - eta * (alpha * (A[i] @ h - b[i]) + (1 - alpha) * delta)
            ends.append(h)
        delta = np.mean([(x - h) / (eta * TAU) for h in ends], axis=0)
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(result.arrays["x"].numpy(), x, rtol=0, atol=1e-12)
    trace = stgt.simulate(
        replace(strategy.algorithm, gamma=GAMMA), problem, server, rounds, engine="numpy", oracle=stgt.oracles.Exact()
    )
    np.testing.assert_allclose(trace.x[0, 0], x, rtol=0, atol=1e-12)


@pytest.mark.release
def test_the_example_runs(capsys):
    """The predicted and the simulated error of both methods agree to a few percent, and the checks pass."""
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    first, second, *report = done.stdout.splitlines()
    for line, name in ((first, "OneVector"), (second, "ST-GT")):
        found = re.fullmatch(rf"{name}: predicted (\S+), simulated (\S+)", line)
        assert abs(float(found[1]) / float(found[2]) - 1) < 0.15
    assert report[0] == "OneVector (OneVector): all checks passed"
