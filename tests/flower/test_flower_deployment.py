"""A SuperLink and SuperNodes as processes of their own, with TLS and keys, that come late, die, intrude and restart.

The tests share one federation, and go on where the one before ended.
"""

import http.client
import re
import shutil
import ssl
import sys
from pathlib import Path

import deployment
import numpy as np
import pytest
from deployment import Deployment, wait_for

from stgt.flower import run_in_process

pytestmark = pytest.mark.release
APP = Path(__file__).with_name("deployed_app")
# Which clients are called is looked up by the round: 2 is called in rounds 1, 2 and 5, so that one round waits for it.
CLIENTS, ROUNDS, DIES, LATE, INTRUDER = 5, 6, 2, 4, 9
CONFIG = {"clients": CLIENTS, "sampled": 3, "rounds": ROUNDS, "wide": 0}

if deployment.MISSING:
    pytest.skip(f"needs {' and '.join(deployment.MISSING)} to make certificates", allow_module_level=True)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """A run in which one client comes after the first round, by the proxy, and another dies after the second."""
    folder = tmp_path_factory.mktemp("federation")
    made = Deployment(folder)

    def await_round(number: int) -> None:
        path = folder / f"round-{number}.txt"
        wait_for(lambda: path.exists() or app.poll() is not None, 120, made.log("app"))
        assert path.exists(), made.log("app")

    try:
        if shutil.which("nginx"):
            made.start_proxy()
        signed = made.sign(APP)
        made.let_in(*range(CLIENTS))
        for node in range(CLIENTS):
            if node != LATE:
                made.start_node(node, CLIENTS)
        made.call("key", INTRUDER)  # and nobody registers it
        made.start_node(INTRUDER, CLIENTS)
        given = " ".join(f"{key}={value}" for key, value in CONFIG.items())
        app = made.run(signed, f"{given} out='{folder}'")
        await_round(1)
        made.start_node(LATE, CLIENTS, made.public if "proxy" in made.processes else None)
        await_round(2)
        made.kill(f"node-{DIES}")
        await_round(ROUNDS)
        assert app.wait(30) == 0, made.log("app")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def undisturbed():
    """The models of each round when everybody is there from the beginning to the end."""
    sys.path.insert(0, str(APP))
    import deployed

    models = []
    run_in_process(
        deployed.strategy(CONFIG),
        deployed.client,
        deployed.initial(CONFIG),
        run_config=CONFIG,
        num_rounds=ROUNDS,
        evaluate_fn=lambda _, arrays: models.append(deployed.weight(arrays).copy()),
    )
    return models


def test_a_client_that_dies_and_one_that_comes_late_change_little(disturbed, undisturbed):
    found = np.loadtxt(disturbed.folder / f"round-{ROUNDS}.txt")
    assert np.isfinite(found).all()
    way = np.linalg.norm(undisturbed[-1] - undisturbed[0])
    # Who is called depends on who is there. In this process, with any one late and any other dead, it is 0.18 at most.
    assert np.linalg.norm(found - undisturbed[-1]) < 0.3 * way
    assert "train message" in disturbed.log(f"node-{LATE}")
    assert "train message" in disturbed.log(f"node-{DIES}")
    numbers = [int(number) for number in re.findall(r"'clients': (\d)[,}]", disturbed.log("app"))]
    assert len(numbers) == ROUNDS, "each round counts"
    assert min(numbers) < 3, "a round went on without the dead client"


def test_a_client_with_a_key_that_was_not_registered_is_refused(disturbed):
    intruder = disturbed.processes[f"node-{INTRUDER}"]
    wait_for(lambda: intruder.poll() is not None, 10, "the intruder is still there")
    assert intruder.returncode != 0
    assert "Failed to activate SuperNode" in disturbed.log(f"node-{INTRUDER}")
    assert "message" not in disturbed.log(f"node-{INTRUDER}").lower().split("failed to activate")[0]
    activated = re.findall(r"Activated node_id=(\d+)", disturbed.log("superlink"))
    assert len(set(activated)) == CLIENTS


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/fleet/pull-messages", 415),  # the SuperLink's own answer to a body that is none of Flower's
        ("/v1/control/start-run", 403),
        ("/v1/control/register-node", 403),
        ("/v1/runtime/acquire-task", 403),
        ("/v1/fleet/../control/start-run", 403),
        ("/v1/fleet/%2e%2e/control/start-run", 403),
        ("/v1/fleet/..%2fcontrol/start-run", 403),
        ("//v1/control/start-run", 403),
        ("/docs", 403),
    ],
)
def test_clients_reach_nothing_but_what_is_for_them(disturbed, path, status):
    context = ssl.create_default_context(cafile=disturbed.folder / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    connection = http.client.HTTPSConnection(disturbed.public, context=context, timeout=10)
    connection.request("POST", path, b"", {"Content-Type": "text/plain"})
    assert connection.getresponse().status == status
    connection.close()


def test_the_folder_is_nobody_elses(disturbed):
    assert disturbed.folder.stat().st_mode & 0o777 == 0o700
    files = [path for path in disturbed.folder.iterdir() if path.suffix in (".key", ".db")]
    assert len(files) >= CLIENTS + 3, "those of the clients, the signer, the SuperLink, and its database"
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_key_that_was_replaced_lets_nobody_in(disturbed):
    old = disturbed.processes["node-0"]
    assert disturbed.call("register", disturbed.address, 0) == "", "it is registered already"
    disturbed.call("rotate", 0)
    assert "unregistered" in disturbed.call("register", disturbed.address, 0)
    wait_for(lambda: old.poll() is not None, 40, "the SuperNode with the old key is still there")
    assert old.returncode == 0, "so its service must start it again whatever the status"
    disturbed.start_node(0, CLIENTS)
    wait_for(lambda: "SuperNode ID" in disturbed.log("node-0"), 30, disturbed.log("node-0"))


def test_after_a_restart_all_come_back_and_none_runs_what_was_not_signed(disturbed):
    disturbed.kill("superlink")
    disturbed.start_superlink()
    others = [f"node-{node}" for node in range(CLIENTS) if node != DIES]
    app = disturbed.run(APP, f"clients={CLIENTS} out='{disturbed.folder}'")
    assert app.wait(90) != 0
    assert "The FAB could not be verified" in disturbed.log("app")
    for name in others:
        assert disturbed.processes[name].poll() is None
        wait_for(lambda name=name: "could not be verified" in disturbed.log(name), 30, f"{name} was not asked")
