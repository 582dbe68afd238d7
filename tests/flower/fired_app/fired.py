"""A quadratic problem with noisy gradients, by ScaffoldPlus, whose clients fail in all ways that a draw can name.

f_i(x) = ½ Σ_j a_ij (x_j − b_ij)², and a batch has b_i + noise in the place of b_i.
"""

import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from spoils import HARMLESS, SPOILS, is_whole

import stgt
from stgt._internal.files import write_text
from stgt.flower import Strategy, Task, client_app

CLIENTS, SAMPLED, P, TAU, LR, NOISE = 6, 4, 8, 4, 0.1, 0.1
_DRAWS = np.random.default_rng(11)
CURVES = _DRAWS.uniform(0.5, 2.0, (CLIENTS, P))
CENTRES = _DRAWS.normal(size=(CLIENTS, P))
OPTIMUM = (CURVES * CENTRES).sum(axis=0) / CURVES.sum(axis=0)
METHOD = stgt.ScaffoldPlus(tau=TAU, gamma_g=1.0, gamma_c=0.8)
TOPOLOGY = stgt.topology.server(CLIENTS, sampled=SAMPLED)
# The share of each kind of fault among a client's rounds. The first two are waited for as long as the timeout.
SHARES = {"sleep": 0.04, "die": 0.04, "raise": 0.05, "spoil": 0.13, "harmless": 0.05}
CALM = 120.0  # seconds that a round without faults may take, and that the server waits for the test
TIMEOUTS = 4.0, 60.0  # of a round under fire, at least and at most: twice what a calm one takes


class Point(torch.nn.Module):
    """A vector in two parameters."""

    def __init__(self):
        super().__init__()
        self.u = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.float64))
        self.v = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))


def loss(model, batch):
    curve, centre = batch
    return 0.5 * (curve * (torch.cat([model.u.reshape(-1), model.v]) - centre).square()).sum()


def setup(context: Context, config) -> Task:
    """The client's part. stgt seeds torch by seed, partition and round before it calls this."""
    partition = int(context.node_config["partition-id"])
    curve, centre = torch.tensor(CURVES[partition]), torch.tensor(CENTRES[partition])
    batches = [(curve, centre + NOISE * torch.randn(P, dtype=torch.float64)) for _ in range(TAU)]
    model = Point()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return Task(model, optimizer, batches, loss, evaluate=lambda net: {"loss": float(loss(net, (curve, centre)))})


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("u", "v")])


# -- the clients -------------------------------------------------------------------------------------------------------


def fault_of(fire: int, number: int, partition: int) -> tuple[str, str]:
    """What goes wrong with a client in a round, drawn from the seed: its kind, and which way to spoil its reply."""
    if not fire:
        return "", ""
    draws = np.random.default_rng([fire, number, partition])
    kind = str(draws.choice(["", *SHARES], p=[1 - sum(SHARES.values()), *SHARES.values()]))
    ways = {"spoil": SPOILS, "harmless": HARMLESS}.get(kind)
    return kind, str(draws.choice(list(ways))) if ways else ""


client = ClientApp()


@client.query()
@client.evaluate()
def answer(message: Message, context: Context) -> Message:
    return client_app(setup)(message, context)


@client.train()
def train(message: Message, context: Context) -> Message:
    """What stgt's client does; or a fault, which a file records before it is made."""
    config, partition = message.content["config"], int(context.node_config["partition-id"])
    reply = client_app(setup, state_dir=context.node_config.get("state-dir"))(message, context)
    kind, way = fault_of(config.get("fire", 0), config["server-round"], partition)
    if not kind or (way and not is_whole(reply.content)):
        return reply
    if kind == "harmless":
        return Message(RecordDict(HARMLESS[way](dict(reply.content))), reply_to=message)
    path = Path(context.run_config["out"]) / f"fault-{config['server-round']}-{partition}.txt"
    write_text(path, f"{kind} {way}".strip())
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise RuntimeError("a fault that was drawn")
    if kind == "sleep":
        time.sleep(config["timeout"] + 1.0)
        return reply
    return Message(RecordDict(SPOILS[way](dict(reply.content))), reply_to=message)


# -- the server --------------------------------------------------------------------------------------------------------

server = ServerApp()


def strategy(seed: int, method=METHOD, rounds: int = 30, **options) -> Strategy:
    """One that goes on through any number of rounds that do not count."""
    return Strategy(method, TOPOLOGY, seed=seed, patience=rounds + 1, **options)


def conserved(made: Strategy) -> float:
    """max |Σ_i conserved_i|, of the server's state and its copies of what each client keeps."""
    server_state, method, total = made.server_state, made.algorithm, {}
    for client in range(made.topology.n):
        view = server_state.views[server_state.view_round[client]]
        client_state = server_state.client_states.get(client, {})
        for name, x in view["x"].items():
            known = {field: one[name] for field, one in {**view, **client_state}.items()}
            state = {field: known.get(field, 0.0 * x) for field in method.spec().state_fields}
            total[name] = total.get(name, 0.0) + method.conserved(state, made.topology.participation)
    return max(float(np.abs(value).max()) for value in total.values())


@server.main()
def main(grid, context) -> None:
    """Two calm rounds, which show what this machine takes for one, and from the beginning again the rounds under
    fire."""
    config = context.run_config
    out, stops = Path(config["out"]), config["stops"].split()

    def recording(name: str):
        def record(done: int, arrays: ArrayRecord) -> None:
            write_text(out / f"{name}-{done}.txt", "")
            until = time.monotonic() + CALM
            while f"{name}-{done}" in stops and not (out / f"go-{name}-{done}").exists() and time.monotonic() < until:
                time.sleep(0.2)

        return record

    everybody = strategy(0, min_clients=CLIENTS)
    calm = everybody.start(grid, Point(), num_rounds=2, timeout=CALM, evaluate_fn=recording("calm"))
    timeout = float(np.clip(2 * calm.history[-1].seconds, *TIMEOUTS))
    made = strategy(0, rounds=config["rounds"])
    result = made.start(
        grid,
        Point(),
        num_rounds=config["rounds"],
        timeout=timeout,
        train_config=ConfigRecord({"fire": config["fire"], "timeout": timeout}),
        evaluate_fn=recording("round"),
    )
    found = {
        "timeout": timeout,
        "history": [asdict(outcome) for outcome in result.history],
        "conserved": conserved(made),
        "model": vector(result.arrays).tolist(),
    }
    write_text(out / "end.json", json.dumps(found))
