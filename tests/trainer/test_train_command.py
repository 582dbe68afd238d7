"""`stgt train`, `torchrun -m stgt.torch.train` and the examples, as a user meets them, on made-up digits."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
STGT = Path(sys.executable).with_name("stgt")


SPEC = """
rounds = {rounds}
evaluate_every = 2
checkpoint_every = 2
batch = 16
[data]
name = "mnist"
partition = "label"
classes = 5
[model]
name = "mlp"
hidden = 16
[optimizer]
name = "SGD"
lr = {lr}
[algorithm]
name = "{algorithm}"
tau = 5
[topology]
name = "ring"
"""


def write_spec(folder: Path, rounds: int = 6, lr: float = 0.1, algorithm: str = "STGT") -> Path:
    path = folder / "spec.toml"
    path.write_text(SPEC.format(rounds=rounds, lr=lr, algorithm=algorithm))
    return path


def command(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([STGT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_train_learns_and_goes_on_where_it_stopped(digits, tmp_path):
    out = tmp_path / "out"
    result = command("train", write_spec(tmp_path), "--nodes", 2, "--data-dir", digits, "--out", out)
    assert result.returncode == 0, result.stderr
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    rows = list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in rows] == [0, 2, 4, 6]
    assert [int(row["steps"]) for row in rows] == [0, 10, 20, 30]
    assert float(rows[-1]["test_accuracy"]) > 0.9  # each digit is a bar of its own, and both nodes' digits are learnt
    # Two nodes: one neighbour, two fields of the flat model a round. 784·16 + 16 + 16·10 + 10 numbers, each parameter
    # rounded up to whole cache lines of 16.
    assert float(rows[-1]["bytes_sent"]) == 6 * 2 * 4 * (12544 + 16 + 160 + 16)
    said = [line.split(", training")[0] for line in result.stdout.splitlines() if ": round " in line]
    assert said == [f"STGT, lr 0.1: round {r} of 6" for r in (0, 2, 4, 6)]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    model = load_file(folder / "model.safetensors")
    assert sum(value.size for value in model.values()) == 784 * 16 + 16 + 16 * 10 + 10
    # Broken off after the last checkpoint: the same command ends at the same model.
    (folder / "model.safetensors").unlink()
    again = command("train", tmp_path / "spec.toml", "--nodes", 2, "--data-dir", digits, "--out", out)
    assert again.returncode == 0, again.stderr
    for name, value in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(value, model[name])
    write_spec(tmp_path, rounds=7)
    other = command("train", tmp_path / "spec.toml", "--nodes", 2, "--data-dir", digits, "--out", out)
    assert other.returncode == 2
    assert other.stderr.strip() == f"stgt: --out {out} has the runs of another spec: give another folder."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": -1.0}, "learning rate: -1.0"),
        ({"algorithm": "STTG"}, "algorithm.name='STTG': choose from"),
    ],
)
def test_what_is_wrong_is_one_sentence(digits, tmp_path, change, words):
    spec = write_spec(tmp_path, **change)
    result = command("train", spec, "--nodes", 2, "--data-dir", digits, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("stgt: ")
    assert words in result.stderr


def test_missing_data_is_one_sentence(tmp_path):
    result = command("train", write_spec(tmp_path), "--data-dir", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.release
def test_the_example_of_ones_own_model_runs():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    result = subprocess.run(
        [*torchrun, str(ROOT / "examples" / "own_model.py")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    accuracy = float(result.stdout.split("classes: ")[1].split()[0])
    assert accuracy > 0.95  # centres three deviations apart in each of 20 directions
    assert "consensus error" in result.stdout
    source = (ROOT / "examples" / "own_model.py").read_text()
    assert len(source.splitlines()) <= 48


@pytest.mark.release
def test_a_method_of_a_script_trains(digits, tmp_path):
    """One vector a round where ST-GT has two: 6 rounds of the model's numbers, rounded up as above, and of the sum of
    its stepsizes, by which it divides: one number of 8 bytes."""
    spec, out = write_spec(tmp_path, algorithm="OneVector"), tmp_path / "out"
    script = ROOT / "examples" / "own_method.py"
    unknown = command("train", spec, "--nodes", 2, "--data-dir", digits, "--out", out)
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("stgt: algorithm.name='OneVector': choose from 'STGT'")
    result = command("train", spec, "--import", script, "--nodes", 2, "--data-dir", digits, "--out", out)
    assert result.returncode == 0, result.stderr
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    last = list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))[-1]
    assert float(last["bytes_sent"]) == 6 * (4 * (12544 + 16 + 160 + 16) + 8)
    assert float(last["test_accuracy"]) > 0.9


OWN = """
import numpy as np
import torch
import stgt
from stgt.torch.train import LabelledData

@stgt.register
def scores(shape, classes, bias=True) -> torch.nn.Module:
    return torch.nn.Linear(*shape, classes, bias=bias)

@stgt.register
def corners(data_dir) -> LabelledData:
    labels = np.arange(120) % 3
    points = np.load(data_dir / "corners.npy")[labels]
    return LabelledData(points[:90], labels[:90], points[90:], labels[90:], classes=3)
"""


@pytest.mark.thorough
def test_a_model_and_data_of_ones_own_train(tmp_path):
    """Three points, the corners of a triangle: a linear model tells them apart, and has 2 · 3 numbers."""
    np.save(tmp_path / "corners.npy", np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]]))
    script, out = tmp_path / "own.py", tmp_path / "out"
    script.write_text(OWN)
    spec = write_spec(tmp_path, lr=1.0)
    text = spec.read_text().replace('"mnist"', '"corners"').replace('"mlp"', '"scores"')
    spec.write_text(text.replace("hidden = 16", "bias = false").replace("classes = 5", "classes = 2"))
    train = ["train", spec, "--nodes", 2, "--data-dir", tmp_path, "--out", out]
    unknown = command(*train)
    assert unknown.returncode == 2
    assert unknown.stderr.startswith(
        "stgt: data.name='corners': choose from 'cifar10', 'mnist'; a name of your own is known"
    )
    result = command(*train, "--import", script)
    assert result.returncode == 0, result.stderr
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    assert [value.shape for value in load_file(folder / "model.safetensors").values()] == [(3, 2)]
    assert float(list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))[-1]["test_accuracy"]) == 1.0


def test_the_example_specs_are_valid():
    from stgt.study.spec.training import load_training

    for path in (ROOT / "examples").glob("*.toml"):
        if path.stem != "own_method":  # a spec for `stgt check`
            assert load_training(path).runs
