"""examples/language_model.py: its texts, its methods in a world of one, and the whole script over two processes."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import language_model

    return language_model


def test_nodes_take_their_kinds_of_text_in_turn_and_share_no_row(example, monkeypatch, tmp_path):
    """1,000 rows of each kind, every row a text of its own; the third kind has one row too few."""
    width = example.CONTEXT + 1
    for kind, count in (("a", 1000), ("b", 1000), ("c", 999)):
        (tmp_path / f"{kind}.txt").write_text("".join(f"{kind}{i:0{width - 1}d}" for i in range(count)))
    (tmp_path / "z.txt").write_text((tmp_path / "b.txt").read_text())
    places = {"A": "a.txt", "nothing": "*.none", "B": "[bz].txt", "C": "c.txt"}
    monkeypatch.setattr(example, "KINDS", {kind: (tmp_path, pattern) for kind, pattern in places.items()})
    shares = [example.share(node, 3) for node in range(3)]
    assert [kind for kind, _, _ in shares] == ["A", "B", "A"]
    # Nodes 0 and 2 have half of A each; b.txt counts once, although z.txt says the same.
    assert [len(mine) for _, mine, _ in shares] == [450, 900, 450]
    assert [len(held) for _, _, held in shares] == [50, 100, 50]
    everything = ["".join(map(chr, row)) for _, *parts in shares for rows in parts for row in rows.tolist()]
    assert sorted(everything) == [f"{kind}{i:0{width - 1}d}" for kind in "ab" for i in range(1000)]
    held = {int("".join(map(chr, row[1:]))) for row in shares[0][2].tolist() + shares[2][2].tolist()}
    assert held == {i for i in range(1000) if i % 100 >= 90}


def test_this_machine_has_texts(example):
    """The standard library's sources at least, the same ones whenever they are asked for."""
    kind, mine, held = example.share(0, 4)
    assert kind == "Python"
    assert mine.shape[1] == held.shape[1] == example.CONTEXT + 1
    assert 0 <= mine.min() <= mine.max() < example.CHARACTERS
    assert 8 < len(mine) / len(held) <= 9.1  # nine to one, but for the last hundred rows
    again = example.share(0, 4)
    assert torch.equal(mine, again[1])
    assert torch.equal(held, again[2])


def test_a_node_alone_trains_alike_by_all_methods(example, alone):
    """Nobody to average with, and no other gradient to follow: c stays 0. Same start, same batches, no bytes."""
    assert sum(parameter.numel() for parameter in example.LanguageModel().parameters()) == NUMBERS
    rows = torch.arange(2000 * (example.CONTEXT + 1)).reshape(2000, -1) % 97
    found = [
        list(example.train(given, rows, rows[:8], steps=4, every=2, lr=3e-3, seed=7))
        for given in example.methods(2).values()
    ]
    for reports in found:
        assert [one["step"] for one in reports] == [0, 2, 4]
        assert [one["MB"] for one in reports] == [0.0] * 3
        assert [one["loss"] for one in reports] == [one["loss"] for one in found[0]]
    assert found[0][2]["loss"] < found[0][1]["loss"] < found[0][0]["loss"]
    (other, *_) = example.train(None, rows, rows[:8], steps=4, every=2, lr=3e-3, seed=8)
    assert other["loss"] != found[0][0]["loss"]


# Characters and places; two blocks with two norms, attention and a perceptron; the last norm; the head.
NUMBERS = (128 + 64) * 64 + 2 * (2 * 128 + 64 * 192 + 192 + 64 * 64 + 64 + 64 * 256 + 256 + 256 * 64 + 64)
NUMBERS += 128 + 64 * 128 + 128


@pytest.mark.thorough
def test_the_script_compares_the_methods(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    asked = ["--steps", "12", "--tau", "4", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*torchrun, str(EXAMPLES / "language_model.py"), *asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "out" / "language_model.csv").read_text().splitlines()))
    losses, megabytes = {}, {}
    for name in ("all-reduce", "FedAvg", "D-PSGD", "ST-GT"):
        own = [row for row in rows if row["method"] == name]
        assert [int(row["step"]) for row in own] == [0, 4, 8, 12]
        losses[name], megabytes[name] = [float(row["loss"]) for row in own], [float(row["MB"]) for row in own]
        assert f"{name:10} at the end: {losses[name][-1]:.3f}" in done.stdout
        assert losses[name][-1] < losses[name][0] - 0.5
        assert losses[name][0] == losses["all-reduce"][0] == pytest.approx(math.log(128), abs=0.3)  # by chance
    # Float32. Of two nodes, each sends its model to the other once a round, ST-GT a direction beside it; a ring of two
    # sends 2 (2 − 1)/2 gradients a step. Each parameter's size is a multiple of 16, so that none is rounded up.
    model = 4 * NUMBERS / 1e6
    assert megabytes["all-reduce"] == pytest.approx([0, 4 * model, 8 * model, 12 * model])
    assert megabytes["FedAvg"] == megabytes["D-PSGD"] == pytest.approx([0, model, 2 * model, 3 * model])
    assert megabytes["ST-GT"] == pytest.approx([0, 2 * model, 4 * model, 6 * model])
    # Two nodes' exponential graph is the complete one, where D-PSGD that combines last is FedAvg. ST-GT's c is 0 in the
    # first round; gradients that are averaged before AdamW are something else from the first step on.
    assert losses["FedAvg"] == losses["D-PSGD"]
    assert losses["ST-GT"][:2] == losses["FedAvg"][:2]
    assert losses["ST-GT"][2] != losses["FedAvg"][2]
    assert losses["all-reduce"][1] != losses["FedAvg"][1]
    assert (tmp_path / "out" / "language_model.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "language_model.pdf").exists()
