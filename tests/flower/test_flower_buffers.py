"""Buffers: constants stay to the bit and do not travel, a mask may be infinite, and nothing else may become so."""

import numpy as np
import pytest
import quadratics
import torch
from flwr.app import ArrayRecord
from quadratics import FatefulGrid
from torch import nn

import stgt
from stgt.flower import Strategy, Task, run_in_process
from stgt.flower.protocol import Reply
from stgt.flower.server_state import ServerState

CLIENTS = 3
EVERYBODY = stgt.topology.server(CLIENTS)
METHODS = [stgt.ScaffoldPlus(tau=1), stgt.STGT(tau=1), stgt.FedAvg(tau=1)]
NAMED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
TENTH = 0.1


class Attention(nn.Module):
    """Scores under a causal mask, and other constants: one that a mean of three would round, a NaN, an empty one."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
        self.register_buffer("mask", torch.full((4, 4), -torch.inf, dtype=torch.float64).triu(1))
        self.register_buffer("scale", torch.tensor(TENTH, dtype=torch.float64))
        self.register_buffer("unset", torch.tensor([torch.nan]))
        self.register_buffer("empty", torch.zeros(0))

    def forward(self):
        return self.scale * torch.softmax(self.scores + self.mask, dim=1)


def attending(write=lambda model, partition: None):
    """Clients that pull the first column to their number, and write into their buffers as told."""

    def make(partition):
        model = Attention()

        def loss(model, batch):
            value = (model()[:, 0] - partition).square().sum()
            write(model, partition)  # after the only step has read them
            return value

        return Task(model, torch.optim.SGD(model.parameters(), lr=0.1), [None], loss)

    return quadratics.app_of(make)


def run(app, method=METHODS[0], rounds=2):
    arrays = ArrayRecord(Attention().state_dict())
    return run_in_process(Strategy(method, EVERYBODY), app, arrays, num_rounds=rounds)


@NAMED
def test_constants_stay_to_the_bit_and_do_not_go_up(method):
    assert (TENTH + TENTH + TENTH) / 3 != TENTH
    result = run(attending(), method)
    begun = Attention().state_dict()
    for name in ("mask", "scale", "unset", "empty"):
        assert result.arrays[name].numpy().tobytes() == begun[name].numpy().tobytes()
    assert np.abs(result.arrays["scores"].numpy()).max() > 0
    scores = size(result.arrays["scores"])
    down = [numbers["downlink-bytes"] for numbers in result.train_metrics_clientapp.values()]
    assert {numbers["uplink-bytes"] for numbers in result.train_metrics_clientapp.values()} == {scores}
    assert down[0] > scores + size(result.arrays["mask"])  # it goes down once
    assert set(down[1:]) == {scores * (1 if isinstance(method, stgt.FedAvg) else 2)}


def size(array):
    """As Flower packs an array: NumPy's own format."""
    return len(array.data)


@NAMED
def test_one_who_changed_nothing_counts_with_what_the_server_has(method):
    def write(model, partition):
        model.mask[1, 0] = partition  # clients 1 and 2; for client 0 it stays 0
        if partition == 2:
            model.scale = torch.tensor(0.4, dtype=torch.float64)

    found = run(attending(write), method, rounds=1).arrays
    expected = Attention().mask.numpy()
    expected[1, 0] = (0 + 1 + 2) / 3
    np.testing.assert_array_equal(found["mask"].numpy(), expected)
    np.testing.assert_allclose(found["scale"].numpy(), (TENTH + TENTH + 0.4) / 3, rtol=1e-15)


def test_a_number_becomes_finite_when_it_is_so_for_all_who_replied():
    """As the extremes do that an observer of activations keeps, which begin at ±inf."""
    seen = {0: (1.0, 2.0), 1: (3.0, 5.0), 2: (None, 8.0)}

    def write(model, partition):
        first, second = seen[partition]
        if first is not None:
            model.mask[0, 1] = first
        model.mask[0, 2] = second

    found = run(attending(write), rounds=1).arrays["mask"].numpy()
    assert found[0, 1] == -np.inf
    assert found[0, 2] == 5.0


SPOILS = {
    "NaN where it is finite": (0, 0, np.nan),
    "inf where it is finite": (0, 0, np.inf),
    "another inf": (0, 1, np.inf),
    "NaN where it is inf": (0, 1, np.nan),
}
SENTENCE = r"mask, a buffer, has inf or NaN where the server's buffer does not: check the code that writes it\.$"


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_buffer_that_leaves_the_finite_numbers_is_refused_by_its_name(spoil, caplog):
    row, column, value = SPOILS[spoil]

    def write(model, partition, whom=(1,)):
        if partition in whom:
            model.mask[row, column] = value

    result = run(attending(write), rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == 2
    np.testing.assert_array_equal(result.arrays["mask"].numpy(), Attention().mask.numpy())
    assert "round 1: client 1 refused: mask, a buffer, has inf or NaN" in caplog.text
    with pytest.raises(ValueError, match=rf"^no round counted; .*; clients 0, 1, 2 refused: {SENTENCE}"):
        run(attending(lambda model, partition: write(model, partition, range(CLIENTS))), rounds=1)


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_server_looks_for_itself(spoil):
    row, column, value = SPOILS[spoil]
    sent = {name: array.numpy() for name, array in Attention().state_dict().items()}
    state, mask = ServerState(METHODS[0], EVERYBODY, sent), sent["mask"].copy()
    end, lr_sum = {"scores": np.ones((4, 4))}, {"scores": 0.2}
    state.check(0, Reply(end, lr_sum, buffers={"mask": mask}))
    mask[row, column] = value
    with pytest.raises(ValueError, match=f"^{SENTENCE}"):
        state.check(0, Reply(end, lr_sum, buffers={"mask": mask}))
    with pytest.raises(ValueError, match=r"^scores is not in the server's model: give both sides the same one\.$"):
        state.check(0, Reply(end, lr_sum, buffers={"scores": end["scores"]}))


def test_a_client_that_sends_what_it_did_not_change_is_the_same():
    """Another version of the client may send every buffer."""
    sent = {name: array.numpy() for name, array in Attention().state_dict().items()}
    state, end, lr_sum = ServerState(METHODS[0], EVERYBODY, sent), {"scores": np.ones((4, 4))}, {"scores": 0.2}
    whole = {name: array for name, array in sent.items() if name != "scores"}
    state.aggregate(0, {i: Reply(end, lr_sum, buffers=whole if i else {}) for i in range(CLIENTS)})
    for name, array in whole.items():
        assert state.model()[name].tobytes() == array.tobytes()


def test_the_mask_survives_a_server_that_starts_again(tmp_path):
    arrays, path = ArrayRecord(Attention().state_dict()), tmp_path / "server.safetensors"
    for rounds in (1, 3):
        strategy = Strategy(stgt.FedAvg(tau=1), EVERYBODY, checkpoint=path)
        result = strategy.start(FatefulGrid(attending(), CLIENTS), arrays, num_rounds=rounds)
    for name in ("mask", "scale", "unset"):
        assert result.arrays[name].data == arrays[name].data
