"""Two hosts for real: two network namespaces joined by a cable, torchrun --nnodes 2, the same result as on one host."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from nodes import HERE, python_environment
from test_lost_nodes import finals

ADDRESSES = ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def hosts():
    """The names of two namespaces that can reach each other; skips where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts: there is no `ip` command (iproute2) to make network namespaces with")
    names = [f"stgt-{os.getpid()}-{i}" for i in range(2)]
    cables = [f"st{os.getpid() % 100000}{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"two hosts: network namespaces cannot be made here ({done.stderr.strip()})")
            made.append(name)
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(names, cables, ADDRESSES, strict=True):
            _ip("link", "set", cable, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names, cables
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"two hosts: `ip {' '.join(arguments)}` failed ({done.stderr.strip()})")


@pytest.mark.thorough
def test_two_hosts_equal_one(hosts, forker, tmp_path):
    names, cables = hosts
    agents = []
    for machine, (name, cable) in enumerate(zip(names, cables, strict=True)):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        command += [f"--node-rank={machine}", "--nproc-per-node=2", f"--master-addr={ADDRESSES[0]}"]
        command += ["--master-port=29500", str(HERE / "resumable.py"), str(tmp_path / f"host-{machine}"), "6"]
        environment = python_environment() | {"GLOO_SOCKET_IFNAME": cable}
        agents.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for agent in agents:
        _, errors = agent.communicate(timeout=200)
        assert agent.returncode == 0, errors.decode()[-2000:]
    alone = forker.start(tmp_path / "one", 4, "resumable", str(tmp_path / "one"), "6")
    assert [node.finish(100) for node in alone] == [0] * 4
    for machine in range(2):  # each host has its own nodes' files only
        for rank in (2 * machine, 2 * machine + 1):
            (tmp_path / f"host-{machine}" / f"final-{rank}.safetensors").rename(tmp_path / f"final-{rank}.safetensors")
    np.testing.assert_array_equal(finals(tmp_path, 4), finals(tmp_path / "one", 4))
