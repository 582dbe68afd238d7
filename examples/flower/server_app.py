"""The server: calls some clients each round, and tests what comes of it on the whole test set."""

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from task import images, method, model, parts, path

import stgt
from stgt.experiments.training.batches import normalised
from stgt.experiments.training.node_training import evaluate
from stgt.files import read_table, write_table
from stgt.flower import Strategy

app = ServerApp()


@app.main()
def main(grid, context) -> None:
    config = context.run_config
    algorithm, out, data = method(config), path(config, "out"), images(config)
    parts(config, data)  # what is wrong with the config is said before anybody is called
    torch.manual_seed(config["seed"])
    net = model(config, data)
    test = normalised(data.x_test, data.name), torch.from_numpy(data.y_test)

    def look(done: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        net.eval()
        loss, correct = evaluate(net, *test)
        found = {"test_accuracy": correct / len(data.y_test), "test_loss": loss / len(data.y_test)}
        if out is not None:
            before = read_table(out) if done and out.exists() else []  # of a run that goes on
            before = [row for row in before if int(row["round"]) < done]
            write_table(out, [*before, {"round": done, **found}])
        return MetricRecord({**found})

    topology = stgt.topology.server(config["clients"], sampled=config["sampled"], seed=config["seed"])
    strategy = Strategy(algorithm, topology, seed=config["seed"], checkpoint=path(config, "checkpoint"))
    strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=config["rounds"],
        timeout=config["timeout"],
        evaluate_fn=look,
    )
