"""The playground's settings as calls of the library, and what its NumPy engine finds for them."""

from __future__ import annotations

import numpy as np

import stgt
from stgt.simulator import Crash, Repair, simulate_churn

EXACT = {"engine": "numpy", "dtype": "float64"}
SERVED = ("FedAvg", "Scaffold", "DiLoCo")  # their model is at the server


def settings(graph, methods, *, n=5, rounds=50, noise=0.3, seed=5, events=(), centres=None):
    """Settings of the page; a method is a name, or a dict."""
    entries = [one if isinstance(one, dict) else {"name": one} for one in methods]
    return {
        "n": n,
        "graph": graph if isinstance(graph, dict) else {"kind": graph},
        "problem": {"spread": 1.2, "seed": 3, "noise": noise, "centres": centres},
        "methods": [{"gamma": 0.05, "tau": 4, **one} for one in entries],
        "rounds": rounds,
        "seed": seed,
        "events": list(events),
    }


def algorithm(entry):
    """A method of the settings."""
    options = {"gamma": entry["gamma"], "tau": entry["tau"]}
    beta = {"beta": entry["beta"]} if entry.get("beta") else {}
    name, momentum = entry["name"], entry.get("momentum") or 0
    if name == "DiLoCo":
        return stgt.DiLoCo(**options, momentum=momentum)
    if name in ("FedAvg", "DPSGD"):
        plain = getattr(stgt, name)(**options)
    elif name == "STGT_adjoint":
        plain = stgt.STGT(**options, **beta, adjoint=True)
    else:
        plain = getattr(stgt, name)(**options, **beta)
    return stgt.Outer(plain, momentum=momentum) if momentum else plain


def topology(given, n):
    """The drawn graph of n nodes."""
    kind = given["kind"]
    made = {
        "ring": lambda: stgt.topology.ring(n),
        "directed": lambda: stgt.topology.ring(n, directed=True),
        "exponential": lambda: stgt.topology.exponential(n),
        "one_peer": lambda: stgt.topology.one_peer_exponential(n),
        "edges": lambda: stgt.topology.from_edges(given["edges"], n),
        "server": lambda: stgt.topology.server(n, sampled=given.get("sampled")),
    }[kind]()
    return stgt.topology.unreliable(made, link=given["lost"]) if given.get("lost") else made


def topology_of(entry, given, n):
    """The graph that a method runs on."""
    return topology({"kind": "server"} if entry["name"] in SERVED and given["kind"] != "server" else given, n)


def problem(result, noise):
    """The library's problem with the A_i and the minimisers m_i of a result; b_i = A_i m_i."""
    A = np.array([[[a, c], [c, d]] for a, c, d in result["problem"]["A"]])
    b = np.einsum("nij,nj->ni", A, np.array(result["problem"]["centres"]))
    return stgt.problems.Quadratic(A, b, noise=noise**2)


def models(n):
    """Metrics that are the numbers of all models."""
    return [stgt.Metric(f"x{i}{k}", "", lambda at, i=i, k=k: at.x[i, k]) for i in range(n) for k in range(2)]


def traces(given, result):
    """A trace for each method; with events a `ChurnTrace`."""
    n, rounds, found = given["n"], given["rounds"], []
    data = problem(result, given["problem"]["noise"])
    for entry in given["methods"]:
        method = algorithm(entry)
        if given["events"]:
            found.append(churn(method, data, entry, given))
            continue
        graph = topology_of(entry, given["graph"], n)
        metrics = ["residual", *(["sum_c"] if method.spec().tracks else []), *models(n)]
        found.append(stgt.simulate(method, data, graph, rounds, [given["seed"]], metrics=metrics, **EXACT))
    return found


def churn(method, data, entry, given):
    changes = [
        Crash(event["round"], event["node"]) if event["kind"] == "kill" else Repair(event["round"])
        for event in given["events"]
    ]

    def graph(n):
        if entry["name"] in SERVED or given["graph"]["kind"] == "server":
            return stgt.topology.complete(n)
        return topology(among(given, n), n)

    return simulate_churn(
        method, data, graph, given["rounds"], [given["seed"]], changes=changes, repair="none", **EXACT
    )


def among(given, n):
    """The drawn graph when n nodes are left: of a list of edges those between them, with new numbers."""
    dead = [event["node"] for event in given["events"] if event["kind"] == "kill"][: given["n"] - n]
    left = [node for node in range(given["n"]) if node not in dead]
    edges = [[left.index(i), left.index(j)] for i, j in given["graph"].get("edges") or [] if {i, j} <= set(left)]
    return {**given["graph"], "edges": edges}


def check_equal(given, result, tolerance=1e-12):
    """All that the runs of a result share with the library's traces is equal."""
    for number, (run, trace) in enumerate(zip(result["runs"], traces(given, result), strict=True)):
        count = len(run["error"])
        assert count == given["rounds"] + 1 or run["diverged_at"] == count
        close = {"rtol": tolerance, "atol": tolerance, "err_msg": run["label"]}
        np.testing.assert_allclose(run["error"], trace.residual[0, :count], **close)
        if "sum_c" in trace.values and run["diverged_at"] is None:  # otherwise it is the rounding of large numbers
            np.testing.assert_allclose(run["sum_c"], trace["sum_c"][0, :count], **close)
        if given["events"]:
            np.testing.assert_array_equal(run["alive"], trace.members[:-1])
            if number == 0:
                alive = np.flatnonzero(trace.members[-1])
                np.testing.assert_allclose(np.array(run["frames"][-1][-1])[alive], trace.x[0, alive], **close)
            continue
        # The library counts what all nodes and a server send, in numbers; the page in bytes for each node.
        np.testing.assert_allclose(run["bytes"], trace["floats"][0, :count] * 4 / given["n"], rtol=1e-12)
        check_weights(run, trace, given)
        if number == 0:
            seen = [[[trace[f"x{i}{k}"][0, r] for k in range(2)] for i in range(given["n"])] for r in range(count)]
            np.testing.assert_allclose([frames[0] for frames in run["frames"]], seen[: len(run["frames"])], **close)


def check_weights(run, trace, given):
    for r, weights in enumerate(run["weights"]):
        W = weights if isinstance(weights, list) else run["phases"][weights]
        np.testing.assert_allclose(W, trace.topology.matrix(r, given["seed"]), rtol=0, atol=1e-15)
