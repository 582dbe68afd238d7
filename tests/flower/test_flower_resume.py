"""A run that is stopped and goes on: from the server's checkpoint and the clients' own files."""

import re
import shutil
from functools import cache

import numpy as np
import pytest
import quadratics
from flwr.app import Array, ArrayRecord
from quadratics import CLIENTS, FatefulGrid, RestartGrid

import stgt
from stgt.flower import Strategy, client_app

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


def set_aside(folder):
    """Copies what the server has written."""
    for path in folder.glob("server*"):
        copy = folder / "old" / path.name
        shutil.copytree(path, copy) if path.is_dir() else (copy.parent.mkdir(exist_ok=True), shutil.copy(path, copy))


def bring_back(folder):
    for path in folder.glob("server*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(folder / "old", folder, dirs_exist_ok=True)


def go_on(method, rounds, folder, state_dir=True):
    """A new server and new clients that have nothing but their files."""
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
    set_aside(tmp_path)
    go_on(method, 7, tmp_path)  # the clients do round 7, and what the server makes of it is gone
    bring_back(tmp_path)
    _, found = go_on(method, ROUNDS, tmp_path)
    np.testing.assert_array_equal(found, undisturbed(method))


@NAMED
def test_clients_that_are_further_than_an_old_checkpoint_go_back_to_it(method, tmp_path, caplog):
    go_on(method, 3, tmp_path)
    set_aside(tmp_path)
    go_on(method, ROUNDS, tmp_path)
    bring_back(tmp_path)
    _, found = go_on(method, ROUNDS, tmp_path)
    # The server sends its copy of each one's state, and the run is the same again.
    np.testing.assert_array_equal(found, undisturbed(method))
    assert " lost: " not in caplog.text


@NAMED
def test_the_server_s_files_are_enough(method, tmp_path, caplog):
    """Clients that have nothing, not even files of their own: they are sent their state."""
    go_on(method, 6, tmp_path, state_dir=False)
    _, found = go_on(method, ROUNDS, tmp_path, state_dir=False)
    np.testing.assert_array_equal(found, undisturbed(method))
    assert " lost: " not in caplog.text


def test_only_the_copies_of_the_last_two_rounds_are_kept(tmp_path):
    strategy, _ = go_on(PLUS, ROUNDS, tmp_path)
    kept = {path.name.split("-")[0] for path in (tmp_path / "server.clients").iterdir()}
    assert kept == {str(partition) for partition in strategy.server_state.client_states}
    assert len(list((tmp_path / "server.clients").iterdir())) <= len(kept) + 3


@pytest.mark.parametrize("harm", ["cut", "flipped", "missing"])
@pytest.mark.parametrize("which", ["server", "copy"])
def test_a_damaged_file_costs_a_round_and_is_told(which, harm, tmp_path, caplog):
    """The generation before it is whole, and the clients go back with it: the end is the same."""
    fates = {"fate": lambda r, i: "ok"}
    app = quadratics.app_of(state_dir=tmp_path / "clients")

    def run(rounds):
        strategy = Strategy(PLUS, SAMPLED, checkpoint=tmp_path / "server.safetensors")
        return strategy, quadratics.start(strategy, FatefulGrid(app, **fates), rounds)

    strategy, _ = run(5)
    path = tmp_path / "server.safetensors"
    if which == "copy":
        member = strategy.history[-1].taken[0]
        path = tmp_path / "server.clients" / f"{member}-{strategy.server_state.accepted[member][:16]}.safetensors"
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    else:
        content[-3] ^= 1
        path.write_bytes(content if harm == "flipped" else content[:-5])
    again, found = run(ROUNDS)
    assert again.done == 4
    if (which, harm) != ("server", "missing"):
        assert "an earlier round." in caplog.text
        assert (tmp_path / "server.damaged.safetensors").exists()
    np.testing.assert_array_equal(
        found, quadratics.start(Strategy(PLUS, SAMPLED), FatefulGrid(quadratics.app_of()), ROUNDS)
    )
    assert [one.round for one in again.history] == list(range(1, ROUNDS + 1))


@NAMED
def test_a_client_that_starts_again_finds_its_state_on_disk(method, tmp_path, caplog):
    everybody = stgt.topology.server(CLIENTS)
    grid = RestartGrid(quadratics.app_of(state_dir=tmp_path))
    found = quadratics.start(Strategy(method, everybody), grid, 6)
    np.testing.assert_array_equal(
        found, quadratics.start(Strategy(method, everybody), FatefulGrid(quadratics.app_of()), 6)
    )
    assert " lost: " not in caplog.text


def test_each_client_may_name_its_own_folder(tmp_path):
    app = client_app(
        lambda context, config: quadratics.task(context.node_config["partition-id"]),
        state_dir=lambda context: tmp_path / f"site-{context.node_config['partition-id']}",
    )
    quadratics.start(Strategy(PLUS, stgt.topology.server(CLIENTS)), FatefulGrid(app), 2)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")} == {
        f"site-{i}/partition-{i}.safetensors" for i in range(CLIENTS)
    }


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
    assert " lost: " not in caplog.text


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
    for path in tmp_path.glob("server*.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o600  # nobody else may read it
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"server\.safetensors is cut off: .* remove it to start again"):
        go_on(PLUS, 4, tmp_path)


def test_a_file_that_is_no_checkpoint_is_one_sentence(tmp_path):
    (tmp_path / "server.safetensors").write_text("not a checkpoint")
    with pytest.raises(
        ValueError, match=r"server\.safetensors is not a state of a Flower server of stgt: give another file"
    ):
        go_on(PLUS, 4, tmp_path)


@pytest.mark.parametrize(
    ("method", "topology", "options", "arrays", "what"),
    [
        (stgt.ScaffoldPlus(tau=3, gamma_g=0.9, gamma_c=0.7), SAMPLED, {}, None, "algorithm"),
        (stgt.STGT(tau=2), SAMPLED, {}, None, "algorithm"),
        (PLUS, stgt.topology.server(CLIENTS, sampled=2), {}, None, "topology"),
        (PLUS, stgt.topology.server(CLIENTS, sampled=3, seed=1), {}, None, "topology"),
        (PLUS, SAMPLED, {"seed": 1}, None, "seed"),
        (PLUS, SAMPLED, {"weights": "num_examples"}, None, "weights"),
        (PLUS, SAMPLED, {}, ArrayRecord({"w": Array(np.zeros(3))}), "model"),
    ],
)
def test_a_checkpoint_of_another_run_is_one_sentence(method, topology, options, arrays, what, tmp_path):
    go_on(PLUS, 2, tmp_path)
    written = (tmp_path / "server.safetensors").read_bytes()
    other = Strategy(method, topology, **options, checkpoint=tmp_path / "server.safetensors")
    with pytest.raises(ValueError, match=rf"server\.safetensors has another {what}: .* or the {what} that it was made"):
        other.start(FatefulGrid(quadratics.app_of()), arrays or quadratics.initial(), num_rounds=4)
    assert (tmp_path / "server.safetensors").read_bytes() == written


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.write_bytes(path.read_bytes()[:-3]), lambda path: path.write_text("{}")],
    ids=["cut", "no file of this kind"],
)
def test_a_broken_client_file_counts_as_none(spoil, tmp_path, caplog):
    """It is logged at the client, which goes on from the server's copy."""
    everybody = stgt.topology.server(CLIENTS)

    class BreakingGrid(RestartGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if messages and messages[0].content["stgt"].get("round") == self.at:
                spoil(tmp_path / "partition-1.safetensors")
            return super().send_and_receive(messages, timeout=timeout)

    strategy = Strategy(PLUS, everybody)
    found = quadratics.start(strategy, BreakingGrid(quadratics.app_of(state_dir=tmp_path)), 6)
    assert re.search(r"partition-1\.safetensors is (cut off|no state of a Flower client)", caplog.text)
    lost = FatefulGrid(quadratics.app_of(), fate=lambda r, i: "lost" if (r, i) == (RestartGrid.at, 1) else "ok")
    np.testing.assert_array_equal(found, quadratics.start(Strategy(PLUS, everybody), lost, 6))


@pytest.mark.parametrize(
    ("other", "what"),
    [(stgt.ScaffoldPlus(tau=2, gamma_g=0.9, gamma_c=0.1), "algorithm"), (PLUS, "model")],
)
def test_a_client_s_state_of_another_run_is_told_to_the_server(other, what, tmp_path):
    """When client 1 starts again, its folder is that of another federation."""
    everybody, theirs = stgt.topology.server(CLIENTS), tmp_path / "theirs"
    dtype = quadratics.torch.float32 if what == "model" else quadratics.torch.float64
    app = quadratics.app_of(lambda i: quadratics.task(i, dtype=dtype), state_dir=theirs)
    quadratics.start(Strategy(other, everybody), FatefulGrid(app), 2, arrays=quadratics.initial(dtype))

    class ForeignGrid(RestartGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if messages and messages[0].content["stgt"].get("round") == self.at:
                shutil.copy(theirs / "partition-1.safetensors", tmp_path)
            return super().send_and_receive(messages, timeout=timeout)

    grid = ForeignGrid(quadratics.app_of(state_dir=tmp_path))
    result = Strategy(PLUS, everybody).start(grid, quadratics.initial(), num_rounds=RestartGrid.at + 1)
    (absence,) = result.history[-1].absent
    assert (absence.client, absence.reason) == (1, "refused")
    assert f"the client's state has another {what}: " in absence.detail
