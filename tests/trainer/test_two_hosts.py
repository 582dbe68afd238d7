"""Two hosts for real: two network namespaces joined by a cable, torchrun --nnodes 2, the same result as on one host."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hosts import Hosts, NoHostsError, hosts
from nodes import HERE, python_environment
from test_lost_nodes import finals


@pytest.mark.release
def test_two_hosts_equal_one(forker, tmp_path):
    try:
        with hosts(2) as net:
            train(net, tmp_path)
    except NoHostsError as error:
        pytest.skip(f"two hosts: {error}")
    alone = forker.start(tmp_path / "one", 4, "resumable", str(tmp_path / "one"), "6")
    assert [node.finish(100) for node in alone] == [0] * 4
    for machine in range(2):  # each host has its own nodes' files only
        for rank in (2 * machine, 2 * machine + 1):
            (tmp_path / f"host-{machine}" / f"final-{rank}.safetensors").rename(tmp_path / f"final-{rank}.safetensors")
    np.testing.assert_array_equal(finals(tmp_path, 4), finals(tmp_path / "one", 4))


def train(net: Hosts, folder: Path) -> None:
    agents = []
    for machine, (name, cable) in enumerate(zip(net.names, net.cables, strict=True)):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        command += [f"--node-rank={machine}", "--nproc-per-node=2", f"--master-addr={net.addresses[0]}"]
        command += ["--master-port=29500", str(HERE / "resumable.py"), str(folder / f"host-{machine}"), "6"]
        environment = python_environment() | {"GLOO_SOCKET_IFNAME": cable}
        agents.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for agent in agents:
        _, errors = agent.communicate(timeout=200)
        assert agent.returncode == 0, errors.decode()[-2000:]
