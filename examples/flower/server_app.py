"""The server: calls some clients each round, and tests what comes of it on the whole test set."""

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from task import images, method, model, parts, path
from torch.nn.functional import cross_entropy

import stgt
from stgt.files import read_table, write_table
from stgt.flower import Strategy
from stgt.train.batches import normalised

app = ServerApp()


@app.main()
def main(grid, context) -> None:
    config = context.run_config
    algorithm, out, data = method(config), path(config, "out"), images(config)
    parts(config, data)  # what is wrong with the config is said before anybody is called
    torch.manual_seed(config["seed"])
    net = model(config, data)

    def evaluate(done: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        found = {"test_accuracy": 0.0, "test_loss": 0.0}
        net.eval()
        with torch.inference_mode():
            for rows in torch.arange(len(data.y_test)).split(1000):
                x, y = normalised(data.x_test[rows], data.name), torch.from_numpy(data.y_test[rows])
                outputs = net(x)
                found["test_accuracy"] += (outputs.argmax(dim=1) == y).sum().item() / len(data.y_test)
                found["test_loss"] += cross_entropy(outputs, y, reduction="sum").item() / len(data.y_test)
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
        evaluate_fn=evaluate,
    )
