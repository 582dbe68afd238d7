"""A training run of a spec, federated: its clients in this process, on Flower."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stgt.flower import Strategy, Task, client_app, run_in_process
from stgt.study import Progress
from stgt.torch.train import Batches, LabelledData, Training, as_tensors, build_model, build_optimizer, evaluate

TRAINING_SAMPLE = 2048  # training images on which the loss is measured


def federate(spec: Training, images: LabelledData, clients: int, progress: Progress) -> list[dict[str, Any]]:
    """Trains to the last round; returns the curve, one row per measurement, with the columns of `stgt train`.

    If a client diverges, or its message is too large for the strategy, that is a result: the run ends there, although
    the strategy could continue without this client. All later measurements are NaN, and so are the bytes sent.

    Args:
        spec: a run whose topology is a server.
        images: the data set; `spec.data` has the partition.
        clients: the number of clients.
        progress: called with the finished and the total rounds.
    """
    algorithm = spec.build_algorithm()
    strategy = Strategy(algorithm, spec.build_topology(clients), seed=spec.seed)
    parts = spec.data.parts(images.y_train, clients)
    batches = [Batches(images, part, spec.batch, spec.seed, i, spec.data.augment) for i, part in enumerate(parts)]

    def new_model() -> nn.Module:
        torch.manual_seed(spec.seed)
        return build_model(spec.model, images)

    def setup(context: Context, config: dict[str, Any]) -> Task:
        mine, first = batches[int(context.node_config["partition-id"])], (config["server-round"] - 1) * algorithm.tau
        model = new_model()
        return Task(model, build_optimizer(spec, model), (mine.at(first + k) for k in range(algorithm.tau)), _loss)

    sample = np.random.default_rng(spec.data.seed).permutation(len(images.y_train))[:TRAINING_SAMPLE]
    train = as_tensors(images, images.x_train[sample], images.y_train[sample])
    test = as_tensors(images, images.x_test, images.y_test)
    model, rows = new_model(), []

    def look(r: int, arrays: ArrayRecord) -> MetricRecord | None:
        progress(r, spec.rounds)
        if r and strategy.history[-1].absent:  # the strategy would continue without this client
            raise ValueError(f"round {r}: {strategy.history[-1].absent[0]}")
        if r % spec.evaluate_every and r != spec.rounds:
            return
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        rows.append(
            {
                "label": spec.name,
                "round": r,
                "steps": r * algorithm.tau,
                "train_loss": evaluate(model, *train)[0] / len(train[1]),
                "test_accuracy": evaluate(model, *test)[1] / len(test[1]),
                "consensus": 0.0,
            }
        )

    arrays, app = ArrayRecord(model.state_dict()), client_app(setup)
    try:
        with _quiet():
            result = run_in_process(strategy, app, arrays, num_rounds=spec.rounds, evaluate_fn=look)
    except ValueError:
        if not (strategy.history and any(one.diverged for one in strategy.history[-1].absent)):
            raise
        progress(spec.rounds, spec.rounds)
        return _to_the_end(rows, spec, algorithm.tau)
    seen = result.train_metrics_clientapp
    sent = [0.0, *accumulate(float(str(one["uplink-bytes"])) for _, one in sorted(seen.items()))]
    return [row | {"bytes_sent": strategy.topology.participation * sent[row["round"]]} for row in rows]


def _to_the_end(rows: list[dict[str, Any]], spec: Training, tau: int) -> list[dict[str, Any]]:
    """The curve of a run that diverged after these measurements: NaN for all later ones, and for the bytes sent."""
    rounds = [*range(0, spec.rounds, spec.evaluate_every), spec.rounds]
    lost = dict.fromkeys(("train_loss", "test_accuracy", "consensus"), math.nan)
    rows = rows + [{"label": spec.name, "round": r, "steps": r * tau, **lost} for r in rounds[len(rows) :]]
    return [row | {"bytes_sent": math.nan} for row in rows]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Flower's log lines; the progress bar and the curve replace them."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])
