"""Six SuperNodes over TLS at which is shot for thirty rounds: they are killed and come back, with what they kept and
without, their clients sleep past the timeout, die, raise and send nonsense, and a seventh claims another's partition.

What is asserted holds whenever what happens: a client that was killed may be late, gone, or back in time.
"""

import json
import re
import shutil
import time
from pathlib import Path

import deployment
import numpy as np
import pytest
from deployment import RECIPE, Deployment, wait_for
from firing import APP, GivenGrid, fired
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

from stgt.flower.result import REASONS

pytestmark = [pytest.mark.release, pytest.mark.timeout(3000)]  # of which an idle machine needs 240
ROUNDS, FIRE, CLIENTS = 30, 3, fired.CLIENTS
SECOND = CLIENTS  # the key of the SuperNode that claims another's partition
# For so long after its death Flower counts a SuperNode as connected, and lets nobody in with its key.
CONNECTED = HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL + 1.0

if deployment.MISSING:
    pytest.skip(f"needs {' and '.join(deployment.MISSING)} to make certificates", allow_module_level=True)


class Battle:
    """A deployment, the run in it, and what is done to it."""

    def __init__(self, folder: Path):
        self.folder, self.draws = folder, np.random.default_rng(FIRE)
        self.first, self.forgetful, self.claimed, self.other = map(int, self.draws.permutation(CLIENTS)[:4])
        # Flower waits five seconds for the lock of a database on disk, and gives up: too short where tests run.
        self.deployment = Deployment(folder, DATABASE=":flwr-in-memory:")

    def fight(self) -> None:
        """Everything from the first SuperNode to the end of the run."""
        self.begin(stops=["calm-1", "round-10", "round-20"])
        self.reach("calm-1")
        self.claim(self.claimed)
        self.go_on("calm-1")
        self.reach("round-2")
        self.kill(self.first, self.forgetful)
        self.forget(self.forgetful)
        self.come_back(self.first, self.forgetful)
        self.go_on("round-10")
        self.reach("round-12")
        self.kill(self.claimed, self.other)
        self.forget(self.other)
        self.come_back(self.other)
        self.go_on("round-20")
        self.reach("round-25")
        self.come_back(self.claimed)  # whose partition the second claimant may have by now
        self.reach(f"round-{ROUNDS}")
        assert self.app.wait(60) == 0, self.deployment.log("app")

    def begin(self, stops: list[str]) -> None:
        signed = self.deployment.sign(APP)
        self.deployment.let_in(*range(CLIENTS + 1))
        self.come_back(*range(CLIENTS))
        given = f"rounds={ROUNDS} fire={FIRE} stops='{' '.join(stops)}' out='{self.folder}'"
        self.app = self.deployment.run(signed, given)

    def reach(self, place: str) -> None:
        path = self.folder / f"{place}.txt"
        wait_for(lambda: path.exists() or self.app.poll() is not None, 800, f"{place} is not reached")
        assert path.exists(), self.deployment.log("app")

    def go_on(self, place: str) -> None:
        (self.folder / f"go-{place}").touch()

    def claim(self, partition: int) -> None:
        """A SuperNode with a key of its own, on a host of its own, claims this partition."""
        host = self.folder / "second"
        host.mkdir()
        for name, copy in (("ca.pem",) * 2, ("trusted.yaml",) * 2, (f"node-{SECOND}.key", f"node-{partition}.key")):
            shutil.copy(self.folder / name, host / copy)
        self.deployment.start("second", RECIPE, "supernode", host, self.deployment.address, partition, CLIENTS)
        wait_for(lambda: len(self.activated()) == CLIENTS + 1, 100, self.deployment.log("second"))

    def activated(self) -> set[str]:
        return set(re.findall(r"Activated node_id=(\d+)", self.deployment.log("superlink")))

    def kill(self, *nodes: int) -> None:
        """-9, one after the other at moments that are drawn; and waits until Flower has noticed."""
        for node in nodes:
            time.sleep(self.draws.uniform(0.0, 4.0))
            self.deployment.kill(f"node-{node}")
        time.sleep(CONNECTED)

    def forget(self, node: int) -> None:
        """Takes away what a client keeps on its host."""
        shutil.rmtree(self.folder / f"state-{node}", ignore_errors=True)

    def come_back(self, *nodes: int) -> None:
        for node in nodes:
            self.deployment.start_node(node, CLIENTS)


@pytest.fixture(scope="module")
def battle(tmp_path_factory):
    made = Battle(tmp_path_factory.mktemp("battle"))
    try:
        made.fight()
        yield made
    finally:
        made.deployment.close()


@pytest.fixture(scope="module")
def end(battle):
    return json.loads((battle.folder / "end.json").read_text())


@pytest.fixture(scope="module")
def taken(end):
    return [outcome["taken"] for outcome in end["history"]]


def test_the_run_ends_with_all_its_rounds(end):
    assert [outcome["round"] for outcome in end["history"]] == list(range(1, ROUNDS + 1))


def test_whoever_was_called_was_taken_in_or_is_absent_with_a_reason(end):
    for outcome in end["history"]:
        absent = [absence["client"] for absence in outcome["absent"]]
        assert sorted(outcome["taken"] + absent) == outcome["called"]
        assert len(set(outcome["called"])) == len(outcome["called"])
        assert all(absence["reason"] in REASONS and absence["detail"] for absence in outcome["absent"])


def test_no_reply_with_a_fault_was_taken_in(battle, end):
    """Each client that made a fault left a file before it did."""
    reasons = {"sleep": (), "die": ("crashed",), "raise": ("crashed",), "spoil": ("refused",)}
    faults = {path.stem: path.read_text().split(" ")[0] for path in battle.folder.glob("fault-*.txt")}
    for name, kind in faults.items():
        number, client = map(int, name.split("-")[1:])
        absent = {absence["client"]: absence["reason"] for absence in end["history"][number - 1]["absent"]}
        assert absent[client] in (*reasons[kind], "late", "gone"), name
    assert set(faults.values()) == set(reasons)


def test_a_client_that_lost_its_state_reports_it_before_it_is_taken_in_again(battle, end):
    """If it was taken in before it was killed, and after it was back for certain."""
    for client, killed, back in ((battle.forgetful, 2, 11), (battle.other, 12, 21)):
        taken = [outcome["round"] for outcome in end["history"] if client in outcome["taken"]]
        reported = [
            outcome["round"]
            for outcome in end["history"]
            for absence in outcome["absent"]
            if (absence["client"], absence["reason"]) == (client, "lost")
        ]
        later = [number for number in taken if number >= back]
        if later and taken[0] <= killed:
            assert any(killed < number < later[0] for number in reported)


def test_a_second_claimant_is_refused_while_the_first_is_there(battle):
    assert f"claims partition-id={battle.claimed}, which node" in battle.deployment.log("app")


def test_what_is_conserved_is(end):
    assert end["conserved"] < 1e-12


def distance(model) -> float:
    return float(np.linalg.norm(np.array(model) - fired.OPTIMUM))


def replayed(seed: int, called: list[list[int]], taken: list[list[int]]) -> np.ndarray:
    """The model of a run in this process in which these are called, and the others of them answer in vain."""
    grid = GivenGrid(fired.client, CLIENTS, called, taken)
    return fired.vector(fired.strategy(seed).start(grid, fired.Point(), num_rounds=len(called)).arrays)


def test_the_model_is_that_of_a_run_in_which_the_absent_said_nothing(end, taken):
    found = replayed(0, [outcome["called"] for outcome in end["history"]], taken)
    np.testing.assert_allclose(np.array(end["model"]), found, rtol=0, atol=1e-12)


def test_the_model_is_where_noise_leaves_it_without_a_fault(end, taken):
    """In eight undisturbed runs of as many replies a round, by clients that are drawn.

    With four replies a round these end 0.03 to 0.06 from the optimum, which is 0.89 from the start; FedAvg ends 0.44
    away. In 750 runs of this battle written out in NumPy, with up to 80 % of the replies late besides, the distance
    was at most 2.7 times the largest of eight such.
    """
    undisturbed = []
    for seed in range(1, 9):
        draws = np.random.default_rng(seed)
        called = [sorted(draws.choice(CLIENTS, len(one), replace=False).tolist()) for one in taken if one]
        undisturbed.append(distance(replayed(seed, called, called)))
    print(distance(end["model"]), undisturbed, end["timeout"])
    assert distance(end["model"]) < 3 * max(undisturbed)
