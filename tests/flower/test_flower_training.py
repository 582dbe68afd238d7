"""A spec's training on Flower against a loop that is written down here."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from reproductions.images import NORMALISATION
from reproductions.training.federate import federate
from reproductions.training.models import mlp
from stgt.torch.train import Batches, LabelledData, Training, as_tensors

CLIENTS, ROUNDS = 3, 4


def images() -> LabelledData:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (80, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 80)
    return LabelledData(pixels[:60], labels[:60], pixels[60:], labels[60:], 3, *NORMALISATION["mnist"])


def training(**changes) -> Training:
    return Training.model_validate(
        {
            "data": {"name": "mnist"},
            "model": {"name": "mlp", "hidden": 5},
            "optimizer": {"name": "SGD", "lr": 0.1},
            "algorithm": {"name": "FedAvg"},
            "topology": {"name": "server"},
            "batch": 4,
            "rounds": ROUNDS,
            "evaluate_every": 3,
            "seed": 7,
        }
        | changes
    )


def test_fed_avg_with_one_step_is_sgd_on_all_batches():
    data, spec, seen = images(), training(), []
    rows = federate(spec, data, CLIENTS, lambda done, total: seen.append((done, total)))
    assert [row["round"] for row in rows] == [0, 3, ROUNDS]
    assert seen == [(r, ROUNDS) for r in range(ROUNDS + 1)]

    torch.manual_seed(7)
    model = mlp(data.shape, data.classes, hidden=5)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    sources = [Batches(data, part, 4, 7, i) for i, part in enumerate(spec.data.parts(data.y_train, CLIENTS))]
    for k in range(ROUNDS):
        sgd.zero_grad()
        for x, y in (one.at(k) for one in sources):
            (cross_entropy(model(x), y) / CLIENTS).backward()
        sgd.step()
    with torch.no_grad():
        x, y = as_tensors(data, data.x_train, data.y_train)
        loss = cross_entropy(model(x), y).item()
        right = (model(as_tensors(data, data.x_test, data.y_test)[0]).argmax(1).numpy() == data.y_test).mean()
    assert rows[-1]["train_loss"] == pytest.approx(loss, rel=1e-5)
    assert rows[-1]["test_accuracy"] == pytest.approx(right)
    parameters = 36 * 5 + 5 + 5 * 3 + 3
    assert 4 * parameters * ROUNDS <= rows[-1]["bytes_sent"] < (4 * parameters + 4 * 200) * ROUNDS  # and four headers


@pytest.mark.parametrize(("nodes", "factor"), [({1}, np.nan), ({0, 1, 2}, np.nan), ({1}, 1e8)])
def test_a_run_ends_where_a_client_leaves_the_finite_numbers(monkeypatch, nodes, factor):
    """Rounds of two steps, batches of NaN from the fifth on: the first is in round 3. Without one client the strategy
    would go on, without any it gives up. One that goes too far is no different."""
    drawn, seen = Batches.at, []

    def at(self: Batches, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = drawn(self, step)
        return (x * factor if self.node in nodes and step >= 4 else x), y

    monkeypatch.setattr(Batches, "at", at)
    spec = training(algorithm={"name": "Scaffold", "tau": 2}, evaluate_every=1)
    rows = federate(spec, images(), CLIENTS, lambda done, total: seen.append(done))
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["steps"] for row in rows] == [0, 2, 4, 6, 8]
    for name in ("train_loss", "test_accuracy", "consensus"):
        assert np.isfinite([row[name] for row in rows]).tolist() == [True, True, True, False, False]
    assert np.isnan([row["bytes_sent"] for row in rows]).all()
    assert seen[-1] == ROUNDS


def test_what_a_user_can_mend_is_still_an_error():
    adam = training(algorithm={"name": "LED"}, optimizer={"name": "AdamW", "lr": 0.1})
    with pytest.raises(ValueError, match="use SGD"):
        federate(adam, images(), CLIENTS, lambda done, total: None)
