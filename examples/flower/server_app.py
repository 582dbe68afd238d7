"""The server: calls some clients in each round, and tests the new model on the whole test set."""

import csv
import time
from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import ServerApp
from task import images, method, model, parts, path

import stgt
from stgt.flower import Strategy
from stgt.torch.train import as_tensors, evaluate

app = ServerApp()


@app.main()
def main(grid, context) -> None:
    config = context.run_config
    algorithm, out, data = method(config), path(config, "out"), images(config, path(config, "data-dir"))
    clients = config["clients"] or present(grid)
    parts(config, data, clients)  # so that an error in the config is raised before a client is called
    sampled = config["sampled"] or min(clients, max(2, clients // 2))
    torch.manual_seed(config["seed"])
    net = model(config, data)
    test = as_tensors(data, data.x_test, data.y_test)

    def look(done: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        net.eval()
        loss, correct = evaluate(net, *test)
        found = {"test_accuracy": correct / len(data.y_test), "test_loss": loss / len(data.y_test)}
        if out is not None:
            lines = out.read_text().splitlines() if done and out.exists() else []  # of a run that continues
            before = [row for row in csv.DictReader(lines) if int(row["round"]) < done]
            rows = [*before, {"round": done, **found}]
            with out.open("w", newline="") as stream:
                table = csv.DictWriter(stream, list(rows[0]))
                table.writeheader()
                table.writerows(rows)
        return MetricRecord({**found})

    topology = stgt.topology.server(clients, sampled=sampled, seed=config["seed"])
    strategy = Strategy(algorithm, topology, seed=config["seed"], checkpoint=path(config, "checkpoint"))
    result = strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=config["rounds"],
        timeout=config["timeout"],
        train_config=ConfigRecord({"clients": clients}),
        evaluate_fn=look,
    )
    found = look(config["rounds"], result.arrays)
    log(INFO, "%s with %d clients: test accuracy %.3f", algorithm.label, clients, found["test_accuracy"])


def present(grid) -> int:
    """The number of connected SuperNodes, once it has been the same for a second."""
    found = 0
    while found == 0 or found != len(list(grid.get_node_ids())):
        found = len(list(grid.get_node_ids()))
        time.sleep(1.0)
    log(INFO, "clients=0: one for each of the %d connected SuperNodes", found)
    return found
