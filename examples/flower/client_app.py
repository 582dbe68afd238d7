"""A client: its part of the images, and how it trains on them."""

from itertools import count

import torch
from task import images, model, parts
from torch.nn.functional import cross_entropy

from stgt.experiments.training.batches import Batches
from stgt.flower import Task, client_app


def loss(net, batch):
    x, y = batch
    return cross_entropy(net(x), y)


def setup(context, told) -> Task:
    config, node = context.run_config, int(context.node_config["partition-id"])
    clients, there = config["clients"], context.node_config.get("num-partitions", config["clients"])
    if there != clients:
        raise ValueError(f"clients={clients} and there are {there} partitions: give as many SuperNodes as clients.")
    data = images(config)
    mine = parts(config, data)[node]
    batches = Batches(data, mine, config["batch"], config["seed"], node)
    first = (told["server-round"] - 1) * config["tau"]
    net = model(config, data)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
    steps = (batches.at(step) for step in count(first))
    return Task(net, optimizer, steps, loss, metrics={"num-examples": len(mine)})


app = client_app(setup)
