"""What a training writes and says while it lasts: lines, TensorBoard's log, pictures; and after a resume, each once."""

import sys

import matplotlib.image
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_train_checks import digits, spec

from reproductions.training.comparison import _curve
from stgt._internal.files import read_table, write_table
from stgt.torch import NonFiniteError
from stgt.torch.train.node_training import NodeTraining
from stgt.torch.train.run_folder import Lines, Record, draw_runs, left_out, line

COLUMNS = ("train_loss", "test_accuracy", "bytes_sent", "consensus")


def row(r: int, **others: float) -> dict:
    """A row of the curve as the trainer writes it, ten seconds a round."""
    values = {"label": "run 0", "round": r, "steps": 5 * r, "train_loss": 2.0 - 0.25 * r, "test_accuracy": 0.1 * r}
    return values | {"bytes_sent": 1.5e6 * r, "consensus": 0.0, "seconds": 10.0 * r} | others


def points(folder) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run's folder: every point of every curve."""
    events = EventAccumulator(str(folder)).Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_line_says_the_measurement_and_the_time_to_go():
    (run,) = spec({"rounds": 8}).runs
    assert line(run, row(0)) == (
        "run 0: round 0 of 8, training loss 2, test accuracy 0.00%, 0.0 MB sent a node"  # no pace is known yet
    )
    assert line(run, row(2)) == (
        "run 0: round 2 of 8, training loss 1.5, test accuracy 20.00%, 3.0 MB sent a node, 0:01:00 to go"
    )
    assert line(run, {name: str(value) for name, value in row(8).items()}) == (
        "run 0: round 8 of 8, training loss 0, test accuracy 80.00%, 12.0 MB sent a node, after 0:01:20"
    )


def test_each_measurement_is_said_once_whoever_starts_again(tmp_path):
    runs = spec({"rounds": 8}, {"rounds": 8})
    path = tmp_path / "run-0" / "curve.csv"
    write_table(path, [row(0), row(2)])  # by an earlier start
    lines = Lines(runs, tmp_path)
    assert lines.new() == []
    write_table(path, [row(0), row(2), row(4)])
    write_table(tmp_path / "run-1" / "curve.csv", [row(0)])
    assert [words.split(", training")[0] for words in lines.new()] == ["run 0: round 4 of 8", "run 1: round 0 of 8"]
    write_table(path, [row(0), row(2)])  # from the last checkpoint on
    write_table(path, [row(0), row(2), row(4), row(6)])
    assert [words.split(", training")[0] for words in lines.new()] == ["run 0: round 6 of 8"]


def test_tensorboard_has_every_point_once_after_a_resume(tmp_path):
    (run,) = spec({"rounds": 8}).runs
    rows, said = [row(0)], []
    first = Record(run, 4, tmp_path, [])
    first.add(rows, said.append)
    for r in (2, 4, 6):
        rows.append(row(r))
        first.add(rows, said.append)
    # The process is killed; its last checkpoint is that of round 4.
    rows = rows[:3]
    again = Record(run, 4, tmp_path, rows)
    for r in (6, 8):
        rows.append(row(r))
        again.add(rows, said.append)
    rows[-1]["own_accuracy"] = 0.75
    again.finish(rows)
    found = points(tmp_path)
    assert set(found) == {*COLUMNS, "steps", "own_accuracy"}
    for name in COLUMNS:
        expected = [(r, np.float32(row(r)[name])) for r in (0, 2, 4, 6, 8)]
        assert found[name] == expected, name
    assert found["own_accuracy"] == [(8, 0.75)]
    assert [words.split(" of ")[0] for words in said] == [f"run 0: round {r}" for r in (0, 2, 4, 6, 6, 8)]
    assert [float(one["round"]) for one in read_table(tmp_path / "curve.csv")] == [0, 2, 4, 6, 8]


def test_without_tensorboard_all_else_is_written(monkeypatch, tmp_path):
    assert left_out() == []
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    (said,) = left_out()
    assert said == "TensorBoard logs are left out because TensorBoard is not installed: pip install tensorboard."
    (run,) = spec({"rounds": 2}).runs
    record = Record(run, 4, tmp_path, [])
    record.add([row(0)], lambda _: None)
    record.finish([row(0), row(2, own_accuracy=0.5)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.csv", "curve.pdf", "curve.png"]


def test_pictures_are_light_and_a_run_that_diverges_leaves_the_others_their_scale(tmp_path):
    runs = spec({"rounds": 4}, {"rounds": 4})
    write_table(tmp_path / "run-0" / "curve.csv", [row(r) for r in range(5)])
    write_table(tmp_path / "run-1" / "curve.csv", [row(0), row(1, train_loss=1e30)])
    draw_runs(runs, 4, tmp_path)
    picture = matplotlib.image.imread(tmp_path / "curves.png")
    assert (picture[:, :, :3].min(axis=2) > 0.95).mean() > 0.8  # mostly white
    # Run 0's loss is drawn from 2 down to 1 below an axis that ends at 1.5 times the first loss: its blue line takes
    # pixels of many rows, where an axis up to 1e30 would leave it one.
    blue = np.isclose(picture[:, :, :3], np.array([0x00, 0x72, 0xB2]) / 255, atol=0.02).all(axis=2)
    upper_left = blue[: blue.shape[0] // 2, : blue.shape[1] // 2]
    assert upper_left.any(axis=1).sum() > 50


def test_a_curve_that_ends_early_is_filled_with_nan_for_comparisons(tmp_path):
    """Rounds 0, 2, 4 and the last, 5, of five steps each."""
    (run,) = spec({"rounds": 5, "evaluate_every": 2}).runs
    for given in ([row(0)], [row(0), row(2)]):
        write_table(tmp_path / "curve.csv", given)
        found = _curve(run, tmp_path / "curve.csv")
        assert [one["round"] for one in found] == [0, 2, 4, 5]
        assert [one["steps"] for one in found] == [0, 10, 20, 25]
        assert [bool(np.isnan(one["train_loss"])) for one in found] == [r >= len(given) for r in range(4)]


def alone_training(tmp_path, **changes) -> tuple[list[dict], list[str], list[int]]:
    """A run in this process: its rows, lines and rounds."""
    (run,) = spec({"rounds": 3, "evaluate_every": 2, "topology": {"name": "complete"}, **changes}).runs
    said, seen = [], []
    training = NodeTraining(run, digits(), torch.device("cpu"))
    return training.train(tmp_path, seen.append, said.append), said, seen


def test_a_node_says_and_writes_what_it_measures(alone, tmp_path):
    data = {"name": "mnist"}
    rows, said, seen = alone_training(tmp_path, data=data)
    assert seen == [1, 2, 3]
    assert [words.split(", training")[0] for words in said] == [f"run 0: round {r} of 3" for r in (0, 2, 3)]
    assert [one["round"] for one in rows] == [0, 2, 3]
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("events.")}
    assert names == {"curve.csv", "curve.png", "curve.pdf", "model.safetensors"}
    assert points(tmp_path)["test_accuracy"] == [(r, np.float32(0.1)) for r in (0, 2, 3)]  # black images, ten classes


def test_a_method_that_starts_warm_is_warmed(alone, tmp_path):
    rows, _, _ = alone_training(
        tmp_path, data={"name": "mnist"}, algorithm={"name": "KGT", "tau": 5, "warm_start": True}
    )
    assert rows[-1]["round"] == 3


@pytest.mark.parametrize(
    ("tau", "words"),
    [
        (1, "^round 1: the training loss is not finite: give a smaller"),
        (5, r"^rank 0, round 0: 1\.weight is not finite \(NaN\); nothing of it was sent: use a smaller lr"),
    ],
)
def test_what_is_not_finite_ends_the_run(alone, tmp_path, tau, words):
    """A first step of 1e38 along the bias' gradient: the loss after it overflows, and the next step's gradient."""
    method = {"name": "STGT", "tau": tau}
    optimizer = {"name": "SGD", "lr": 1e38}
    with pytest.raises(NonFiniteError, match=words):
        alone_training(tmp_path, data={"name": "mnist"}, optimizer=optimizer, algorithm=method, evaluate_every=1)
    assert not (tmp_path / "model.safetensors").exists()
