"""docs/coming_from/ddp.md: its scripts for torch and torchft run, and give the weights of its scripts for stgt."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from nodes import python_environment

import pages

PAGE = pages.ROOT / "docs" / "coming_from" / "ddp.md"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
SAVE = """
import os

torch.save(model.state_dict(), f"{__file__}.{os.environ.get('SITE') or os.environ['RANK']}")
"""
ENDING = "dist.destroy_process_group()\n"  # after which torch's threads sometimes abort the process
LIGHTHOUSE = """
import time
from torchft.coordination import LighthouseServer

server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60000, quorum_tick_ms=50)
print(server.address(), flush=True)
time.sleep(600)
"""
pytestmark = pytest.mark.thorough


@pytest.fixture
def folder(tmp_path):
    """The page's scripts, each of which saves its weights at its end."""
    pages.write_files(PAGE, tmp_path)
    for path in tmp_path.glob("*.py"):
        if path.name != "digits.py":
            text = path.read_text()
            path.write_text(text.removesuffix(ENDING) + SAVE + (ENDING if text.endswith(ENDING) else ""))
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@contextmanager
def started(folder, commands):
    """Processes in that folder, with a lighthouse, which all are ended; `commands` are pairs (words, environment)."""
    lighthouse = subprocess.Popen([sys.executable, "-c", LIGHTHOUSE], stdout=subprocess.PIPE, text=True)
    assert lighthouse.stdout is not None
    processes = [lighthouse]
    try:
        environment = python_environment() | {"TORCHFT_LIGHTHOUSE": lighthouse.stdout.readline().strip()}
        processes += [subprocess.Popen(words, cwd=folder, env=environment | more) for words, more in commands]
        yield processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        lighthouse.stdout.close()


def trained(folder, name):
    """The first node's weights after the script has run in two processes."""
    subprocess.run([*TORCHRUN, "2", name], cwd=folder, env=python_environment(), timeout=150)
    return weights(folder, name)


def weights(folder, name):
    return torch.cat([value.flatten() for value in torch.load(folder / f"{name}.0").values()])


def test_fedavg_with_one_step_is_ddp(folder):
    """With SGD and momentum: the mean of the models after one step is the model after the mean of the steps."""
    change(folder / "with_stgt.py", "stgt.DiLoCo(tau=10, momentum=0.6)", "stgt.FedAvg(tau=1)")
    assert torch.allclose(trained(folder, "with_ddp.py"), trained(folder, "with_stgt.py"), atol=1e-4)


def test_diloco_is_torchft_s_fixed_or_elastic(folder):
    """Ten rounds of two replicas: AdamW inside, SGD with Nesterov's momentum outside."""
    pytest.importorskip("torchft")
    ours = trained(folder, "diloco.py")

    sites = [{"REPLICA_GROUP_ID": site, "SITE": site} for site in "01"]
    with started(folder, [([*TORCHRUN, "1", "with_torchft.py"], site) for site in sites]) as replicas:
        assert [replica.wait(150) for replica in replicas] == [0, 0]
    assert torch.allclose(weights(folder, "with_torchft.py"), ours, atol=1e-5)

    os.rename(folder / "diloco.py", folder / "elastic.py")
    (diff,) = (block.text.splitlines() for block in pages.blocks(PAGE) if block.language == "diff")
    before, after = ("\n".join(line[1:] for line in diff if line[0] in marks) for marks in (" -", " +"))
    change(folder / "elastic.py", before, "import os\n" + after)
    with started(folder, [([sys.executable, "elastic.py"], site) for site in sites]) as nodes:
        assert [node.wait(150) for node in nodes] == [0, 0]
    assert torch.allclose(weights(folder, "elastic.py"), ours, atol=1e-5)
