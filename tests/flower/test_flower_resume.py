"""A run that is stopped and goes on: from the server's checkpoint and the clients' own files."""

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import quadratics
from flwr.app import Array, ArrayRecord
from quadratics import CLIENTS, FatefulGrid, RestartGrid

import stgt
from stgt.flower import Strategy, checkpoint, fit, memory
from stgt.flower.fit import worker_fields

SAMPLED = stgt.topology.server(CLIENTS, sampled=3)
PLUS = stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.7)
OUTER = stgt.Outer(stgt.ScaffoldPlus(tau=2, gamma_c=0.7, beta=0.25))
ADAPTIVE = stgt.Adaptive(PLUS, rule="yogi")
METHODS = [
    PLUS, stgt.STGT(tau=2), stgt.FedAvg(tau=2), OUTER, stgt.DiLoCo(tau=2), stgt.FedDyn(tau=2), stgt.LED(tau=2),
    ADAPTIVE,
]  # fmt: skip
NAMED = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
ROUNDS = 9


def fate(r, partition):
    """Some replies are lost, and all of rounds 4 and 5."""
    return "lost" if r in (4, 5) or (r + partition) % 4 == 0 else "ok"


@cache
def undisturbed(method):
    return quadratics.start(Strategy(method, SAMPLED), FatefulGrid(quadratics.app_of(), fate=fate), ROUNDS)


def go_on(method, rounds, folder, state_dir=True):
    """A new server and new clients that know nothing but their files."""
    app = quadratics.app_of(state_dir=folder / "clients" if state_dir else None)
    strategy = Strategy(method, SAMPLED, checkpoint=folder / "server.safetensors")
    return strategy, quadratics.start(strategy, FatefulGrid(app, fate=fate), rounds)


@pytest.mark.parametrize("stop", [1, 5, 6])
@NAMED
def test_stopped_and_resumed_is_the_uninterrupted_run_to_the_bit(method, stop, tmp_path):
    go_on(method, stop, tmp_path)
    _, found = go_on(method, ROUNDS, tmp_path)
    np.testing.assert_array_equal(found, undisturbed(method))


def test_the_servers_and_the_clients_files_are_on_the_disk(tmp_path, synced):
    go_on(PLUS, 2, tmp_path)
    for path in (tmp_path / "server.safetensors", *(tmp_path / "clients").iterdir()):
        assert path.stat().st_ino in synced
        assert path.parent.stat().st_ino in synced


def test_a_round_that_does_not_count_is_over_all_the_same(tmp_path):
    go_on(PLUS, 5, tmp_path)  # the last of them is one of those without a reply
    grid = FatefulGrid(quadratics.app_of(state_dir=tmp_path / "clients"), fate=fate)
    quadratics.start(Strategy(PLUS, SAMPLED, checkpoint=tmp_path / "server.safetensors"), grid, 7)
    assert {message.content["stgt"]["round"] for message in grid.sends()} == {5, 6}


@NAMED
def test_a_server_that_dies_before_it_writes_does_the_round_again(method, tmp_path):
    go_on(method, 6, tmp_path)
    shutil.copy(tmp_path / "server.safetensors", tmp_path / "old")
    go_on(method, 7, tmp_path)  # the clients do round 7, and what the server makes of it is gone
    shutil.copy(tmp_path / "old", tmp_path / "server.safetensors")
    _, found = go_on(method, ROUNDS, tmp_path)
    np.testing.assert_array_equal(found, undisturbed(method))


@NAMED
def test_an_old_checkpoint_is_noticed_by_clients_that_are_further(method, tmp_path, caplog):
    go_on(method, 3, tmp_path)
    shutil.copy(tmp_path / "server.safetensors", tmp_path / "old")
    go_on(method, ROUNDS, tmp_path)
    shutil.copy(tmp_path / "old", tmp_path / "server.safetensors")
    _, found = go_on(method, ROUNDS, tmp_path)
    assert ("has lost its state" in caplog.text) == bool(worker_fields(method))
    assert np.isfinite(found).all()


def test_without_the_clients_files_control_variables_start_anew(tmp_path, caplog):
    go_on(PLUS, 6, tmp_path, state_dir=False)
    _, found = go_on(PLUS, 50, tmp_path, state_dir=False)
    assert caplog.text.count("has lost its state; all control variables start anew.") == 1
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, quadratics.OPTIMUM, rtol=0, atol=1e-2)


@NAMED
def test_a_client_that_starts_again_finds_its_state_on_disk(method, tmp_path, caplog):
    everybody = stgt.topology.server(CLIENTS)
    grid = RestartGrid(quadratics.app_of(state_dir=tmp_path))
    found = quadratics.start(Strategy(method, everybody), grid, 6)
    np.testing.assert_array_equal(
        found, quadratics.start(Strategy(method, everybody), FatefulGrid(quadratics.app_of()), 6)
    )
    assert "lost" not in caplog.text


def test_a_stale_context_gives_way_to_the_file(tmp_path, caplog):
    """Two SuperNodes of one partition take turns over one folder: each finds what the other one wrote."""
    everybody = stgt.topology.server(CLIENTS)

    class TurnsGrid(FatefulGrid):
        other = None

        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            if replies:
                self.contexts[2], self.other = self.other or quadratics.fresh(self.contexts[2]), self.contexts[2]
            return replies

    found = quadratics.start(Strategy(PLUS, everybody), TurnsGrid(quadratics.app_of(state_dir=tmp_path)), 7)
    np.testing.assert_array_equal(
        found, quadratics.start(Strategy(PLUS, everybody), FatefulGrid(quadratics.app_of()), 7)
    )
    assert "lost" not in caplog.text


def test_rounds_are_counted_over_all_starts(tmp_path):
    seen = []
    app = quadratics.app_of(state_dir=tmp_path)

    def look(r, arrays):
        seen.append(r)

    for rounds in (2, 5, 5):
        strategy = Strategy(PLUS, SAMPLED, checkpoint=tmp_path / "server")
        result = strategy.start(FatefulGrid(app), quadratics.initial(), num_rounds=rounds, evaluate_fn=look)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert result.train_metrics_clientapp == {}
    np.testing.assert_array_equal(
        quadratics.vector(result.arrays),
        quadratics.start(Strategy(PLUS, SAMPLED), FatefulGrid(quadratics.app_of()), 5),
    )


def test_a_truncated_checkpoint_is_one_sentence(tmp_path):
    go_on(PLUS, 2, tmp_path)
    path = tmp_path / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"server\.safetensors cannot be read .*: remove it to start anew"):
        go_on(PLUS, 4, tmp_path)


def test_a_file_that_is_no_checkpoint_is_one_sentence(tmp_path):
    (tmp_path / "server.safetensors").write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"server\.safetensors cannot be read .*: remove it to start anew"):
        go_on(PLUS, 4, tmp_path)


@pytest.mark.parametrize(
    ("method", "topology", "seed", "arrays", "what"),
    [
        (stgt.ScaffoldPlus(tau=3, gamma_g=0.9, gamma_c=0.7), SAMPLED, 0, None, "algorithm"),
        (stgt.STGT(tau=2), SAMPLED, 0, None, "algorithm"),
        (PLUS, stgt.topology.server(CLIENTS, sampled=2), 0, None, "topology"),
        (PLUS, stgt.topology.server(CLIENTS, sampled=3, seed=1), 0, None, "topology"),
        (PLUS, SAMPLED, 1, None, "seed"),
        (PLUS, SAMPLED, 0, ArrayRecord({"w": Array(np.zeros(3))}), "model"),
    ],
)
def test_a_checkpoint_of_another_run_is_one_sentence(method, topology, seed, arrays, what, tmp_path):
    go_on(PLUS, 2, tmp_path)
    written = (tmp_path / "server.safetensors").read_bytes()
    other = Strategy(method, topology, seed=seed, checkpoint=tmp_path / "server.safetensors")
    with pytest.raises(ValueError, match=rf"server\.safetensors is of another {what}: .* or the {what} it was made"):
        other.start(FatefulGrid(quadratics.app_of()), arrays or quadratics.initial(), num_rounds=4)
    assert (tmp_path / "server.safetensors").read_bytes() == written


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "cannot be read"),
        (lambda path: path.write_text("{}"), "cannot be read"),
    ],
)
def test_a_broken_client_file_is_told_to_the_server(spoil, sentence, tmp_path):
    everybody = stgt.topology.server(CLIENTS)
    checkpoint = tmp_path / "server"
    for rounds, expected in ((2, None), (3, sentence)):
        app = quadratics.app_of(state_dir=tmp_path)
        strategy = Strategy(PLUS, everybody, checkpoint=checkpoint)
        if expected is None:
            quadratics.start(strategy, FatefulGrid(app), rounds)
            for partition in range(CLIENTS):
                spoil(tmp_path / f"partition-{partition}.safetensors")
            written = checkpoint.read_bytes()
        else:
            with pytest.raises(ValueError, match=f"no client could do round 3: .*{expected}"):
                quadratics.start(strategy, FatefulGrid(app), rounds)
            assert checkpoint.read_bytes() == written


@pytest.mark.parametrize(
    ("other", "what"),
    [(stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.1), "algorithm"), (PLUS, "model")],
)
def test_a_client_s_state_of_another_run_is_told_to_the_server(other, what, tmp_path):
    everybody = stgt.topology.server(CLIENTS)
    app = quadratics.app_of(state_dir=tmp_path)
    quadratics.start(Strategy(PLUS, everybody, checkpoint=tmp_path / "server"), FatefulGrid(app), 2)
    if what == "model":  # another federation has used the folder in between
        single = quadratics.app_of(lambda i: quadratics.task(i, dtype=quadratics.torch.float32), state_dir=tmp_path)
        arrays = quadratics.initial(quadratics.torch.float32)
        quadratics.start(Strategy(other, everybody), FatefulGrid(single), 2, arrays=arrays)
    else:
        quadratics.start(Strategy(other, everybody), FatefulGrid(app), 2)
    strategy = Strategy(PLUS, everybody, checkpoint=tmp_path / "server")
    with pytest.raises(ValueError, match=f"the client keeps the state of another {what}: .* another state_dir"):
        quadratics.start(strategy, FatefulGrid(quadratics.app_of(state_dir=tmp_path)), 3)


def test_files_from_before_an_option_was_there_go_on_at_its_default(tmp_path, monkeypatch):
    """What a file says of a method may lack options that the method has now; another value is another method."""
    now = fit.as_text

    def before(method):
        told = json.loads(now(method))
        del told["beta"]
        return json.dumps(told, sort_keys=True)

    with monkeypatch.context() as older:
        for module in (checkpoint, memory):
            older.setattr(module, "as_text", before)
        go_on(PLUS, 3, tmp_path)
    _, found = go_on(PLUS, ROUNDS, tmp_path)
    np.testing.assert_array_equal(found, undisturbed(PLUS))
    assert fit.is_of(before(PLUS), PLUS)
    assert not fit.is_of(before(PLUS), replace(PLUS, beta=0.5))
    assert not fit.is_of(before(PLUS), replace(PLUS, gamma_c=0.1))
