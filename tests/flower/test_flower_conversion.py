"""docs/federated.md takes a plain FedAvg app to Scaffold: its diffs, applied to such an app, counted and run."""

import re
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

import pages
from stgt.flower.in_process import InProcessGrid

GUIDE = pages.ROOT / "docs" / "federated.md"
PLAIN = Path(__file__).with_name("fedavg_app")
CLIENTS, ROUNDS = 4, 12
DIFFS = {block.title: block.text for block in pages.blocks(GUIDE) if block.language == "diff"}


def lines(diff, *marks):
    return [line[1:] for line in diff.splitlines() if line[:1] in marks or (not line and " " in marks)]


def test_the_guide_changes_both_files_of_the_app():
    assert set(DIFFS) == {"server_app.py", "client_app.py"}
    for name, diff in DIFFS.items():
        assert lines(diff, " ", "-") == (PLAIN / name).read_text().splitlines()


def test_the_guide_counts_its_lines():
    """Blank lines do not count."""
    counted = [sum(bool(line.strip()) for diff in DIFFS.values() for line in lines(diff, mark)) for mark in "+-"]
    (said,) = re.findall(r"(\d+) lines are new and (\d+) go", GUIDE.read_text())
    assert [int(number) for number in said] == counted


def forget():
    """Other apps have modules of these names."""
    for name in ("task", "client_app", "server_app"):
        sys.modules.pop(name, None)


def trained(folder, out, monkeypatch):
    """The app of a folder, run in this process; the weights that it saves."""
    monkeypatch.syspath_prepend(str(folder))
    forget()
    import client_app
    import server_app

    config = {"rounds": ROUNDS, "out": str(out)}
    grid = InProcessGrid(client_app.app, CLIENTS, config)
    server_app.app(grid, Context(0, 0, {}, RecordDict(), config))
    forget()
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    (folder / "task.py").write_text((PLAIN / "task.py").read_text())
    for name, diff in DIFFS.items():
        (folder / name).write_text("\n".join(lines(diff, " ", "+")) + "\n")
    return folder


def test_the_app_runs_before_and_after_and_is_better_after(converted, tmp_path, monkeypatch):
    """Each of four clients holds two or three digits, and two are called a round."""
    found = {}
    for name, folder in (("FedAvg", PLAIN), ("Scaffold", converted)):
        torch.manual_seed(1)
        weights = trained(folder, tmp_path / f"{name}.pt", monkeypatch)
        monkeypatch.syspath_prepend(str(PLAIN))
        import task

        net = task.Net()
        net.load_state_dict(weights)
        found[name] = sum(task.test(net, task.load_data(i, CLIENTS)[1])["accuracy"] for i in range(CLIENTS)) / CLIENTS
        forget()
    assert found["Scaffold"] > found["FedAvg"] > 0.2
