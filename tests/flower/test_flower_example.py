"""examples/flower as a user starts it: in this process, in Flower's simulation, and what deploy.sh says and makes."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from deployment import ENVIRONMENT, RECIPE, ROOT, free_port, wait_for
from flwr.supercore.fab import Fab
from flwr.superlink.servicer.control.control_handlers import _format_verification
from flwr.supernode.start_client_internal import _verify_fab

from stgt._internal.files import read_table
from stgt.flower.in_process import InProcessGrid

APP = ROOT / "examples" / "flower"
FLWR = Path(sys.executable).with_name("flwr")


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    """`flwr run` of the example with some config; what it starts and leaves running is ended after the tests."""
    home = tmp_path_factory.mktemp("flwr")
    environment = {
        **ENVIRONMENT,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }

    def run(config: str) -> str:
        command = [FLWR, "run", APP, "--stream", "--run-config", config]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
        return done.stdout + done.stderr

    yield run
    for process in _mentioning(str(home)):
        os.kill(process, signal.SIGTERM)
    wait_for(lambda: not _mentioning(str(home)), 30, "the local SuperLink is still there")


def _mentioning(text: str) -> list[int]:
    """The processes in whose command line a text occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def example(monkeypatch):
    """A module of the example, by name."""
    monkeypatch.syspath_prepend(str(APP))
    yield importlib.import_module
    for name in ("task", "client_app", "server_app", "keys"):
        sys.modules.pop(name, None)


@pytest.fixture
def config():
    return tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def deploy(*arguments, **environment: str) -> subprocess.CompletedProcess:
    command = [shutil.which("bash"), RECIPE, *map(str, arguments)]
    return subprocess.run(
        command, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.release
def test_flwr_run_trains_and_writes_the_curve(flwr, tmp_path):
    """With nothing but the example: its data come with scikit-learn, and it has as many clients as there are nodes."""
    out = tmp_path / "curve.csv"
    printed = flwr(f"out='{out}' rounds=3")
    assert out.exists(), printed
    rows = read_table(out)
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"], printed
    assert list(rows[0]) == ["round", "test_accuracy", "test_loss"]
    assert float(rows[3]["test_accuracy"]) > float(rows[0]["test_accuracy"]) + 0.1, printed
    assert float(rows[3]["test_loss"]) < float(rows[0]["test_loss"])
    assert "Scaffold⁺ with 2 clients: test accuracy" in printed, "two are what Flower simulates if nothing is said"


def programs(folder: Path, **texts: str) -> str:
    """A PATH on which shell scripts stand for some programs; an underscore in a name is a dash."""
    folder.mkdir()
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return f"{folder}{os.pathsep}{ENVIRONMENT['PATH']}"


def test_a_simulation_that_failed_is_seen(tmp_path):
    """`flwr run` itself ends with 0 then. Programs that write down what they are given stand for Flower's here."""
    listen = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    failed = r"""printf '"status": "finished:failed",\n"status-details": "sampled=4"\n'"""
    path = programs(
        tmp_path / "bin",
        flower_superlink=f'while [ "$1" != --port ]; do shift; done; exec {sys.executable} -c "{listen}" "$2"',
        flwr=f'echo "$@" >>{tmp_path}/calls; [ "$1" = run ] && echo Successfully started run 7 || {failed}',
    )
    done = deploy("simulate", tmp_path / "keys", 3, "--run-config", "sampled=4", PATH=path)
    assert done.returncode == 1
    assert done.stderr == "deploy.sh: the run failed: sampled=4\n"
    run, listed = (tmp_path / "calls").read_text().splitlines()
    given = "--federation-config num-supernodes=3 client-resources-num-cpus=1 --run-config sampled=4 --stream"
    assert run == f"run {APP} {given}"
    assert listed == "list --run-id 7 --format json"


def test_a_simulation_without_ray_says_how_to_install_it(tmp_path):
    path = programs(tmp_path / "bin", python3="exit 1")
    done = deploy("simulate", tmp_path / "keys", 3, PATH=path)
    assert done.returncode == 1
    assert done.stderr == "deploy.sh: ray is not installed: pip install 'stgt[torch,simulation]'.\n"


@pytest.mark.parametrize("clients", [2, 5])
def test_it_learns_as_it_stands(example, config, clients, tmp_path):
    """Of ten digits one in ten is chance. However few clients there are, no label is left to nobody."""
    config |= {"rounds": 12, "out": str(tmp_path / "curve.csv")}
    grid = InProcessGrid(example("client_app").app, clients, config)
    example("server_app").app(grid, SimpleNamespace(run_config=config))
    assert float(read_table(tmp_path / "curve.csv")[-1]["test_accuracy"]) > 0.5


def test_a_client_keeps_its_state_where_its_supernode_says(example, config, tmp_path):
    config |= {"rounds": 1, "clients": 2, "sampled": 2}
    grid = InProcessGrid(example("client_app").app, 2, config)
    for context in grid.contexts.values():
        context.node_config["state-dir"] = str(tmp_path)
    example("server_app").app(grid, SimpleNamespace(run_config=config))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partition-0.safetensors", "partition-1.safetensors"]


def test_what_is_wrong_with_the_config_is_said_in_one_sentence(example, config, tmp_path):
    task = example("task")
    with pytest.raises(ValueError, match="method='adam': choose from 'scaffold-plus', 'scaffold', 'fedavg', 'fedprox'"):
        task.method({"method": "adam"})
    with pytest.raises(ValueError, match="data='svhn': choose from 'digits', 'mnist', 'cifar10'"):
        task.images({"data": "svhn"}, None)
    with pytest.raises(ValueError, match="data-dir='data': give an absolute path"):
        task.path({"data-dir": "data"}, "data-dir")
    with pytest.raises(ValueError, match="data_dir was left out"):
        task.images({"data": "mnist"}, None)
    config["clients"] = 3
    with pytest.raises(ValueError, match="clients=3 and num-partitions=4 at a client: give the run clients=4"):
        example("server_app").app(
            InProcessGrid(example("client_app").app, 4, config), SimpleNamespace(run_config=config)
        )


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Path:
    """A folder with what every machine has, and neither openssl nor Flower."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("bash", "cat", "chmod", "dirname", "mkdir", "mv", "paste", "rm", "sed"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("certify", "openssl is not on the PATH: install it."),
        ("all 2", "openssl is not on the PATH: install it."),
        ("simulate 2", "flwr is not on the PATH: activate the environment that has stgt[torch,flower]."),
        ("superlink 127.0.0.1:8000", "flower-superlink is not on the PATH: activate the environment"),
        ("supernode here:8443 0 2", "flower-supernode is not on the PATH: activate the environment"),
        ("register 127.0.0.1:8000 0", "flwr is not on the PATH: activate the environment"),
        ("proxy 127.0.0.1:8443 127.0.0.1:8000", "nginx is not on the PATH: install it."),
        ("key 0", "python3 is not on the PATH: install it."),
    ],
)
def test_a_tool_that_is_missing_is_named(tools, tmp_path, words, sentence):
    word, *arguments = words.split()
    done = deploy(word, tmp_path / "keys", *arguments, PATH=str(tools))
    assert done.returncode == 1
    assert f"deploy.sh: {sentence}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("deplyo FOLDER", "'deplyo' is not a command: give one of all simulate certify"),
        ("superlink FOLDER", "give deploy.sh superlink FOLDER ADDRESS."),
        ("all FOLDER none", "NODES='none': give a number of clients."),
        ("superlink FOLDER 0.0.0.0:8000", "anyone who can reach 0.0.0.0:8000 could start runs: give 127.0.0.1:8000"),
        ("supernode FOLDER here:8443 0 2", "has no ca.pem: copy ca.pem there, and call deploy.sh key and"),
    ],
)
def test_what_deploy_is_given_wrong_is_said_in_one_sentence(tmp_path, words, sentence):
    done = deploy(*(tmp_path / "keys" if word == "FOLDER" else word for word in words.split()))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_is_not_renewed_with_a_wrong_passphrase(tmp_path):
    """And what was there stays: a key of its own beside an old certificate would keep the SuperLink from starting."""
    assert deploy("certify", tmp_path, "DNS:superlink.example").returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".key", ".pem")}
    assert set(before) == {"ca.key", "ca.pem", "server.key", "server.pem"}
    assert b"ENCRYPTED" in before["ca.key"]
    done = deploy("certify", tmp_path, CA_PASSPHRASE="another")
    assert done.returncode == 1
    assert "is the passphrase right?" in done.stderr
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", tmp_path / "server.pem"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DNS:localhost, IP Address:127.0.0.1, DNS:superlink.example" in said.stdout


def test_a_key_may_have_a_passphrase(example, tmp_path, monkeypatch, capsysbinary):
    keys, name = example("keys"), str(tmp_path / "node")
    monkeypatch.setenv("KEY_PASSPHRASE", "of the client")
    keys.new("ec", name)
    assert Path(f"{name}.key").stat().st_mode & 0o777 == 0o600
    assert Path(f"{name}.key").read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    keys.unlock(f"{name}.key")
    key = load_ssh_private_key(capsysbinary.readouterr().out, None)  # as flower-supernode does
    assert load_ssh_public_key(Path(f"{name}.pub").read_bytes()) == key.public_key()
    with pytest.raises(FileExistsError):
        keys.new("ec", name)
    monkeypatch.setenv("KEY_PASSPHRASE", "of somebody else")
    with pytest.raises(SystemExit, match="this is not its passphrase"):
        keys.unlock(f"{name}.key")


def test_flower_finds_a_signature_right_and_that_of_another_app_wrong(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        assert deploy("sign", folder, APP).stdout == "@stgt/stgt-flower==0.1.0\n"
        assert deploy("trust", folder, folder / "signer.pub").returncode == 0
    trusted, others = (yaml.safe_load((folder / "trusted.yaml").read_text()) for folder in (ours, theirs))
    fab = (ours / "apps" / "stgt.stgt-flower.0.1.0.fab").read_bytes()
    said = _format_verification([json.loads((ours / "apps" / "stgt.stgt-flower.0.1.0.json").read_text())])
    assert _verify_fab(Fab("", fab, said), trusted)
    assert not _verify_fab(Fab("", fab + b" ", said), trusted)
    assert not _verify_fab(Fab("", fab, said), others)
