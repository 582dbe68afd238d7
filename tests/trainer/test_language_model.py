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


@pytest.mark.parametrize("inner", ["adamw", "sgd"])
@pytest.mark.thorough
def test_a_node_alone_trains_alike_by_all_methods(example, alone, inner):
    """Nobody to average with, and no other gradient to follow: c stays 0. Same start, same batches, no bytes.

    An outer step is something else from the first round's end on, the same for all that have the same momentum.
    """
    assert sum(parameter.numel() for parameter in example.LanguageModel().parameters()) == NUMBERS
    rows = torch.arange(2000 * (example.CONTEXT + 1)).reshape(2000, -1) % 97
    asked = {"steps": 4, "every": 2, "lr": {"adamw": 3e-3, "sgd": 0.3}[inner]}
    methods = example.methods(2)
    if inner == "adamw":
        with pytest.raises(ValueError, match=r"which it is not with AdamW"):
            list(example.train(methods.pop("LED-0.25"), inner, rows, rows[:8], seed=7, **asked))
    found = {
        name: list(example.train(given, inner, rows, rows[:8], seed=7, **asked)) for name, given in methods.items()
    }
    outer = {name for name in found if name.startswith(("DiLoCo", "outer", "NoLoCo"))}
    alike = [set(found) - outer, outer - {"DiLoCo-0.9", "NoLoCo"}, {"DiLoCo-0.9"}, {"NoLoCo"}]
    curves = [{tuple(one["loss"] for one in found[name]) for name in names} for names in alike]
    assert [len(them) for them in curves] == [1, 1, 1, 1]
    assert len({loss for them in curves for loss, _, _ in them}) == 1
    assert len({loss for them in curves for _, loss, _ in them}) == 4
    for reports in found.values():
        assert [one["step"] for one in reports] == [0, 2, 4]
        assert [one["MB"] for one in reports] == [0.0] * 3
        assert reports[2]["loss"] < reports[1]["loss"] < reports[0]["loss"]
    (other, *_) = example.train(None, inner, rows, rows[:8], seed=8, **asked)
    assert other["loss"] != found["FedAvg"][0]["loss"]


# Characters and places; two blocks with two norms, attention and a perceptron; the last norm; the head.
NUMBERS = (128 + 64) * 64 + 2 * (2 * 128 + 64 * 192 + 192 + 64 * 64 + 64 + 64 * 256 + 256 + 256 * 64 + 64)
NUMBERS += 128 + 64 * 128 + 128


def launched(out, *asked):
    """What the script prints over two processes, and its table's losses and MB by method and lr."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    asked = [*asked, "--steps", "12", "--tau", "4", "--out", str(out)]
    done = subprocess.run(
        [*torchrun, str(EXAMPLES / "language_model.py"), *asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    losses, megabytes, steps = {}, {}, {}
    for row in csv.DictReader((out / "language_model.csv").read_text().splitlines()):
        key = row["method"], float(row["lr"])
        for table, value in ((losses, float(row["loss"])), (megabytes, float(row["MB"])), (steps, int(row["step"]))):
            table.setdefault(key, []).append(value)
    for key, taken in steps.items():
        assert taken == [0, 4, 8, 12]
        assert losses[key][-1] < losses[key][0] - 0.5
        assert losses[key][0] == pytest.approx(math.log(128), abs=0.3)  # by chance
    assert len({own[0] for own in losses.values()}) == 1
    return done.stdout, losses, megabytes


@pytest.mark.release
def test_the_script_compares_the_methods(example, tmp_path):
    names = [name for name in example.methods(1) if name != "LED-0.25"]
    printed, losses, megabytes = launched(tmp_path / "out", "--lr", "3e-3", "--methods", *names)
    losses = {name: losses[name, 3e-3] for name in names}
    megabytes = {name: megabytes[name, 3e-3] for name in names}
    for name in names:
        assert f"{name:26} at the end: {losses[name][-1]:.3f}" in printed
    # Float32. Of two nodes, each sends its model to the other once a round, ST-GT a direction beside it; a ring of two
    # sends 2 (2 − 1)/2 gradients a step. Each parameter's size is a multiple of 16, so that none is rounded up.
    model = 4 * NUMBERS / 1e6
    assert megabytes["all-reduce"] == pytest.approx([0, 4 * model, 8 * model, 12 * model])
    for name in names[1:]:
        vectors = 2 if "ST-GT" in name else 1
        assert megabytes[name] == pytest.approx([0, vectors * model, 2 * vectors * model, 3 * vectors * model])
    # Two nodes' exponential graph is the complete one, where D-PSGD that combines last is FedAvg. ST-GT's c is 0 in the
    # first round; gradients that are averaged before AdamW are something else from the first step on.
    assert losses["FedAvg"] == losses["D-PSGD"]
    assert losses["DiLoCo-0.6"] == losses["outer-D-PSGD"]
    for trackers, plain in (
        (["ST-GT", "ST-GT-0.25"], "FedAvg"),
        (["outer-ST-GT-0.25", "outer-ST-GT-0.1"], "DiLoCo-0.6"),
    ):
        for name in trackers:
            assert losses[name][:2] == losses[plain][:2]
            assert losses[name][2] != losses[plain][2]
    assert len({losses[name][1] for name in ("all-reduce", "FedAvg", "DiLoCo-0.9", "DiLoCo-0.6", "NoLoCo")}) == 5
    assert (tmp_path / "out" / "language_model.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "language_model.pdf").exists()


@pytest.mark.release
def test_the_script_with_sgd_inside(tmp_path):
    """Where all start a round from one model and take plain steps, h − W h is gamma tau (W z − z): LED is ST-GT."""
    names, rates = ["FedAvg", "LED-0.25", "ST-GT-0.25"], [0.3, 1.0]
    printed, losses, megabytes = launched(
        tmp_path / "out", "--inner", "sgd", "--lr", *map(str, rates), "--methods", *names
    )
    for rate in rates:
        assert losses["LED-0.25", rate] == pytest.approx(losses["ST-GT-0.25", rate], abs=1e-5)
        assert losses["LED-0.25", rate][:2] == losses["FedAvg", rate][:2]
        assert abs(losses["LED-0.25", rate][3] - losses["FedAvg", rate][3]) > 1e-4
        assert megabytes["LED-0.25", rate] == pytest.approx(megabytes["FedAvg", rate], rel=1e-3)
        for name in names:
            assert f"{f'{name}, lr {rate:g}':26} at the end: {losses[name, rate][-1]:.3f}" in printed
    assert losses["FedAvg", 0.3][1] != losses["FedAvg", 1.0][1]
