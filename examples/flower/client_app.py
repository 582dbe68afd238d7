"""A client: its part of the images, and how it trains on them.

The client's own settings come from the --node-config of its SuperNode, not from the run config: partition-id,
num-partitions, data-dir, and state-dir, a folder in which its control variate survives a restart.
"""

from itertools import count

from task import images, model, parts, path
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from stgt.flower import Task, client_app
from stgt.torch.train import Batches


def loss(net, batch):
    x, y = batch
    return cross_entropy(net(x), y)


def setup(context, round_config) -> Task:
    config, node = context.run_config, context.node_config
    client, clients = int(node["partition-id"]), round_config.get("clients", node.get("num-partitions"))
    if node.get("num-partitions", clients) != clients:
        raise ValueError(
            f"clients={clients} and num-partitions={node['num-partitions']} at a client: give the run "
            f"clients={node['num-partitions']}, and all SuperNodes the same num-partitions."
        )
    data = images(config, path(node, "data-dir") or path(config, "data-dir"))
    mine = parts(config, data, clients)[client]

    first = (round_config["server-round"] - 1) * config["tau"]
    net = model(config, data)
    optimizer = SGD(net.parameters(), lr=config["lr"])
    batches = map(Batches(data, mine, config["batch"], config["seed"], client).at, count(first))
    return Task(net, optimizer, batches, loss, steps=config["tau"], metrics={"num-examples": len(mine)})


app = client_app(setup, state_dir=lambda context: path(context.node_config, "state-dir"))
