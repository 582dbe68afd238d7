"""A spec's training on Flower against a loop that is written down here."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from stgt.experiments.federated import CHOSEN, FEDAVG, GRID, PLUS, SCAFFOLD, SCALES, _claims, _run, federated
from stgt.experiments.training.batches import Batches, normalised
from stgt.experiments.training.comparison import by_method
from stgt.experiments.training.federate import federate
from stgt.experiments.training.models import make_model
from stgt.experiments.training.spec import Training
from stgt.problems.images import Images

CLIENTS, ROUNDS = 3, 4


def images() -> Images:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (80, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 80)
    return Images("mnist", pixels[:60], labels[:60], pixels[60:], labels[60:], classes=3)


def test_fed_avg_with_one_step_is_sgd_on_all_batches():
    data = images()
    spec = Training.model_validate(
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
    )
    seen = []
    rows = federate(spec, data, CLIENTS, lambda done, total: seen.append((done, total)))
    assert [row["round"] for row in rows] == [0, 3, ROUNDS]
    assert seen == [(r, ROUNDS) for r in range(ROUNDS + 1)]

    torch.manual_seed(7)
    model = make_model("mlp", data.x_train.shape, data.classes, hidden=5)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    sources = [Batches(data, part, 4, 7, i) for i, part in enumerate(spec.data.parts(data.y_train, CLIENTS))]
    for k in range(ROUNDS):
        sgd.zero_grad()
        for x, y in (one.at(k) for one in sources):
            (cross_entropy(model(x), y) / CLIENTS).backward()
        sgd.step()
    with torch.no_grad():
        loss = cross_entropy(model(normalised(data.x_train, "mnist")), torch.from_numpy(data.y_train)).item()
        right = (model(normalised(data.x_test, "mnist")).argmax(1).numpy() == data.y_test).mean()
    assert rows[-1]["train_loss"] == pytest.approx(loss, rel=1e-5)
    assert rows[-1]["test_accuracy"] == pytest.approx(right)
    parameters = 36 * 5 + 5 + 5 * 3 + 3
    assert 4 * parameters * ROUNDS <= rows[-1]["bytes_sent"] < (4 * parameters + 4 * 200) * ROUNDS  # and four headers


def test_claims_need_a_lead_beyond_the_intervals():
    def rows(method, values):
        shared = {"method": method, "lr": 0.1, "train_loss": 1.0, "bytes_sent": 0.0, "consensus_error": 0.0}
        return [
            {**shared, "seed": seed, "steps": k, "test_accuracy": value}
            for seed, value in enumerate(values)
            for k in range(3)
        ]

    far = rows(PLUS, (0.95, 0.96)) + rows(FEDAVG, (0.80, 0.81)) + rows(SCAFFOLD, (0.90, 0.99))
    assert [claim.holds for claim in _claims(by_method(far))] == [True, False]
    # Leads of 0.05 and 0.15: 0.10 ± 12.7 · 0.05, as a t of one degree of freedom has it.
    near = rows(PLUS, (0.85, 0.96)) + rows(FEDAVG, (0.80, 0.81)) + rows(SCAFFOLD, (0.85, 0.96))
    claims = _claims(by_method(near))
    assert [claim.holds for claim in claims] == [False, False]
    assert claims[0].figures["lead"] == pytest.approx(0.1)
    assert claims[0].figures["interval"] == pytest.approx(12.706 * 0.05, rel=1e-3)


@pytest.mark.parametrize("model", CHOSEN)
def test_the_chosen_stepsizes_are_inside_their_grids(model):
    for method, rate in CHOSEN[model].items():
        assert min(GRID[model][method]) < rate < max(GRID[model][method])
        assert _run(model, method, rate, 2, 1, 0).optimizer.arguments["lr"] == rate
    assert model in {scale[0] for scale in SCALES.values()}


def test_a_run_that_cannot_go_on_is_named(monkeypatch):
    def diverge(*arguments):
        raise ValueError("no client could do round 3: u is not finite after the local steps: take a smaller lr.")

    monkeypatch.setattr("stgt.experiments.training.federate.federate", diverge)
    monkeypatch.setattr("stgt.experiments.federated.load_images", lambda *arguments: None)
    with pytest.raises(
        ValueError, match=r"^Scaffold⁺ · lr 0\.025 · seed 0: no client could do round 3: .* smaller lr\.$"
    ):
        federated()
