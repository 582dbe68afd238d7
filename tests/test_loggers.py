"""Loggers: what each of them is given, what can be read back from it, and what a run that goes on logs."""

import json
import logging
import math
import signal
import struct
from pathlib import Path

import numpy as np
import pytest

import stgt
from catalogue import quadratic
from stgt._internal.files import read_table
from stgt._internal.loggers import CsvLogger, as_logger

# Gradient descent on x²/2 from x = 1: x_r = (1 − γ)^r, the residual (1 − γ)^2r. Every node is alike.
LINE = stgt.problems.Quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
BOTH = stgt.topology.complete(2)
ODD = {"a/b": 0.1, "not a number": math.nan, "too much": math.inf}


class Notes(list):
    """A logger that is a function."""

    def __call__(self, values, step):
        self.append((step, values))

    @property
    def steps(self):
        return [step for step, _ in self]


def descend(rounds, gamma=0.5, **options):
    options = {"x0": [1.0], "engine": "numpy", "metrics": ["residual"], **options}
    return stgt.simulate(stgt.DPSGD(gamma=gamma), LINE, BOTH, rounds, **options)


# -- what can be given ------------------------------------------------------------------------------------------------


class Writer:
    def add_scalar(self, tag, scalar_value, global_step=None):
        raise NotImplementedError


REFUSED = [3, "log.txt", Path("log"), Writer, logging.getLogger(), object(), lambda values: None]


@pytest.mark.parametrize("given", REFUSED, ids=lambda one: type(one).__name__)
def test_what_is_no_logger_is_refused_in_a_sentence(given):
    with pytest.raises(ValueError, match=r"logger[= ].*: give a TensorBoard SummaryWriter, .* a path that ends") as why:
        descend(1, logger=given)
    assert "\n" not in str(why.value)


def test_anything_with_a_log_of_values_and_a_step():
    class Mine:
        def log(self, values, step):
            seen.append((step, values))

    class Theirs:
        def log_metrics(self, metrics, step=None):
            seen.append((step, metrics))

    for logger in (Mine(), Theirs()):
        seen = []
        descend(2, logger=logger)
        assert seen == [(0, {"residual": 1.0}), (1, {"residual": 0.25}), (2, {"residual": 0.0625})]


def test_nothing_is_no_logger():
    assert as_logger(None) is None


def test_a_logger_that_fails_costs_a_warning_and_not_the_run():
    def full(values, step):
        raise OSError("no space is left")

    with pytest.warns(UserWarning, match=r"logger failed \(OSError: no space is left\).*the run continues"):
        trace = descend(3, logger=full)
    assert trace.residual[0, -1] == 4.0**-3


# -- what a simulation logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_means_over_the_seeds_of_every_round_as_it_goes(engine):
    notes, seen = Notes(), []
    options = {"seeds": 3, "engine": engine, "metrics": ["loss", {"first": lambda x: x[0]}], "logger": notes}
    parts = (stgt.DPSGD(gamma=0.05), quadratic(2, 2, noise=0.5), BOTH)
    trace = stgt.simulate(*parts, 7, **options, callback=lambda r, state: seen.append(notes.steps[:]))
    assert seen == [list(range(r)) for r in range(1, 8)], "before round r, all rounds up to r − 1"
    assert notes.steps == list(range(8))
    for r, values in notes:
        assert list(values) == ["loss", "first"]
        assert all(type(value) is float for value in values.values())
        assert values == pytest.approx({name: trace[name][:, r].astype(float).mean() for name in values}, rel=1e-12)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_run_that_goes_on_logs_what_is_new(engine, tmp_path):
    notes, parts = Notes(), {"engine": engine, "x0": [1.0], "checkpoint": tmp_path / "run.stgt"}
    before = descend(4, **parts, logger=notes)
    assert notes.steps == [0, 1, 2, 3, 4]
    descend(4, **parts, logger=notes)
    assert notes.steps == [0, 1, 2, 3, 4], "nothing was left to do"
    descend(6, **parts, logger=notes)
    assert notes.steps == [0, 1, 2, 3, 4, 5, 6]
    descend(3, engine=engine, x0=None, resume=before, logger=notes)
    assert notes.steps[7:] == [5, 6, 7]
    assert notes == [(r, {"residual": 0.25**r}) for r in notes.steps]


def test_each_round_once_after_an_interrupt():
    notes, before = Notes(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        first = descend(9, logger=notes, callback=lambda r, state: r == 5 and signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (first.rounds, first.interrupted) == (5, True)
    descend(4, x0=None, resume=first, logger=notes)
    assert notes == [(r, {"residual": 0.25**r}) for r in range(10)]


def test_the_batches_of_a_sweep_are_told_apart():
    """τ steps a round: the residual is (1 − γ)^2rτ."""
    notes = Notes()
    options = {"x0": [1.0], "engine": "numpy", "metrics": ["residual"], "logger": notes}
    stgt.sweep(stgt.DPSGD(gamma=0.5), LINE, BOTH, 1, **options, grid={"tau": [1, 2]})
    assert notes[-1] == (1, {"tau=2/residual": 1 / 16})
    assert notes[1] == (1, {"tau=1/residual": 1 / 4})


def test_the_runs_of_a_sweep_are_told_apart_by_what_varies():
    notes, options = Notes(), {"x0": [1.0], "engine": "numpy", "metrics": ["residual"]}
    stgt.sweep(stgt.DPSGD(gamma=0.1), LINE, BOTH, 1, **options, grid={"gamma": [0.5, 0.75]}, logger=notes)
    assert notes == [
        (0, {"gamma=0.5/residual": 1.0, "gamma=0.75/residual": 1.0}),
        (1, {"gamma=0.5/residual": 0.25, "gamma=0.75/residual": 0.0625}),
    ]


def test_methods_that_are_compared_are_told_apart_by_their_labels(tmp_path):
    """They run side by side into one file; γ = ½ and ¾."""
    options = {"x0": [1.0], "engine": "numpy", "metrics": ["residual"], "logger": tmp_path / "log.csv"}
    methods = [stgt.DPSGD(tau=1), stgt.FedAvg(tau=1), (stgt.DPSGD(tau=1), stgt.topology.ring(2))]
    found = stgt.compare(methods, LINE, BOTH, 3, **options, grid={"gamma": [0.5, 0.75]})
    rows = read_table(tmp_path / "log.csv")
    for label in found.runs:
        for gamma, ratio in ((0.5, 4), (0.75, 16)):
            name = f"{label}/gamma={gamma}/residual"
            assert {int(row["round"]): float(row[name]) for row in rows if row[name]} == {
                r: float(ratio) ** -r for r in range(4)
            }
    assert len(rows) == 2 * 4 * 3  # what was chosen is run again, on fresh seeds
    assert len(rows[0]) == 1 + 2 * 3 + 3


def test_rounds_that_are_left_out_are_not_logged():
    """With γ = 4 the residual is 9^r, above 1.8e308 from round 324 on: no rounds are made from the next multiple of 256
    on."""
    notes = Notes()
    with np.errstate(over="ignore"):
        trace = descend(3000, gamma=4.0, logger=notes)
    assert trace.diverged[0]
    assert notes.steps == [*range(512), 3000]
    assert notes[2] == (2, {"residual": 81.0})
    assert notes[400][1]["residual"] == math.inf


# -- a CSV file -------------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, float]]:
    """Without the cells that are empty."""
    return [{name: float(value) for name, value in row.items() if value} for row in read_table(path)]


def test_a_table_of_a_run(tmp_path):
    path = tmp_path / "new" / "log.csv"
    descend(3, logger=path)
    assert path.read_text() == "round,residual\n0,1.0\n1,0.25\n2,0.0625\n3,0.015625\n"
    descend(1, logger=str(path))
    assert path.read_text() == "round,residual\n0,1.0\n1,0.25\n", "a new run has a new table"


def test_columns_may_come_later_and_names_may_hold_anything(tmp_path):
    logger = CsvLogger(tmp_path / "log.csv")
    for step, values in enumerate(({"a": 1.0}, {"a": 2.0}, {'b, "c"\nd': 3.0}, {"a": math.nan}, ODD)):
        logger.log(values, step)
    found = rows(tmp_path / "log.csv")
    assert found[:3] == [{"round": 0, "a": 1}, {"round": 1, "a": 2}, {"round": 2, 'b, "c"\nd': 3}]
    assert math.isnan(found[3]["a"])
    assert found[4] == pytest.approx({"round": 4, **ODD}, nan_ok=True)


def test_what_is_logged_again_is_replaced(tmp_path):
    """By the same process, which may have loaded a checkpoint: the other columns stay."""
    logger = CsvLogger(tmp_path / "log.csv")
    for step in range(4):
        logger.log({"a": step}, step)
        logger.log({"b": 10 * step}, step)
    logger.log({"a": 22}, 2)
    logger.log({"a": 33}, 3)
    found = rows(tmp_path / "log.csv")
    assert {row["round"]: row["a"] for row in found if "a" in row} == {0: 0, 1: 1, 2: 22, 3: 33}
    assert {row["round"]: row["b"] for row in found if "b" in row} == {0: 0, 1: 10, 2: 20, 3: 30}
    assert len(found) == 8


def test_a_file_that_was_cut_anywhere_is_read_and_goes_on(tmp_path):
    """A process that is killed leaves the first rows whole, and of the one that it wrote a part, or nothing."""
    path = tmp_path / "log.csv"
    logger = CsvLogger(path)
    for step in range(3):
        logger.log({"a": step + 0.125, "b": -step}, step)
    whole = path.read_bytes()
    begin = whole.index(b"1,1.125")
    for length in range(begin, len(whole) + 1):
        path.write_bytes(whole[:length])
        ended = whole[:length].count(b"\n") - 1
        read_table(path)
        again = CsvLogger(path)
        for step in range(ended, 4):
            again.log({"a": step + 0.125, "b": -step}, step)
        assert rows(path) == [{"round": step, "a": step + 0.125, "b": -step} for step in range(4)]


def test_a_run_that_was_broken_off_goes_on_in_its_table(tmp_path):
    """It is broken off after round 5 was logged and before it was saved, so that round 5 is made twice."""

    def stop(r, state):
        if r == 6:
            raise RuntimeError("killed")

    options = {"checkpoint": tmp_path / "run.stgt", "every": 1, "logger": tmp_path / "log.csv"}
    with pytest.raises(RuntimeError, match="killed"):
        descend(9, **options, callback=stop)
    assert [row["round"] for row in rows(tmp_path / "log.csv")] == [0, 1, 2, 3, 4, 5]
    assert stgt.Trace.load(tmp_path / "run.stgt").rounds == 5
    descend(9, **options)
    assert rows(tmp_path / "log.csv") == [{"round": r, "residual": 0.25**r} for r in range(10)]


def test_a_disk_that_was_full_for_a_while_costs_a_row(tmp_path, monkeypatch):
    """Half of a row is written before the disk is full."""
    path, append = tmp_path / "log.csv", CsvLogger._append

    def full(self, values, step, names):
        path.write_text(path.read_text() + "2,0.0")
        raise OSError(28, "No space left on device")

    logger = as_logger(path)
    for step in range(5):
        monkeypatch.setattr(CsvLogger, "_append", full if step == 2 else append)
        if step == 2:
            with pytest.warns(UserWarning, match="No space left"):
                logger.log({"a": step}, step)
        else:
            logger.log({"a": step}, step)
    assert rows(path) == [{"round": step, "a": step} for step in (0, 1, 3, 4)]


FOREIGN = ["hello", "method,round\nST-GT,0\n", "round,a\nfirst,1\n", "round,a\n0,1,2\n", "\x00\n"]


@pytest.mark.parametrize("text", FOREIGN)
def test_somebody_elses_file_is_left_alone(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"log\.csv is not a log of stgt: give another path"):
        descend(1, logger=path)
    assert path.read_text() == text


def test_a_path_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"folder\.csv is a folder: give the path of a file"):
        descend(1, logger=tmp_path / "folder.csv")
    with pytest.raises(ValueError, match=r"log\.csv cannot be written \(.*\): give another path"):
        descend(1, logger=tmp_path / "file" / "log.csv")


# -- the trackers themselves ------------------------------------------------------------------------------------------


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        descend(3, logger=writer)
        as_logger(writer).log({"x": math.nan, "y": math.inf}, 7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("residual")] == [(r, 0.25**r) for r in range(4)]
    assert math.isnan(events.Scalars("x")[0].value)
    assert [(one.step, one.value) for one in events.Scalars("y")] == [(7, math.inf)]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Nothing leaves the machine, and nothing is written elsewhere."""
    values = {
        "DO_NOT_TRACK": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_CACHE_DIR": str(tmp_path),
        "WANDB_CONFIG_DIR": str(tmp_path),
        "WANDB_CONSOLE": "off",
        "WANDB_DATA_DIR": str(tmp_path),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def history(path: Path) -> list[dict[str, float]]:
    """The rows of a W&B run's file: protobuf records in LevelDB's log format, after a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record, found = path.read_bytes(), 7, b"", []
    while at < len(data):
        if at % 32768 > 32768 - 7:  # the rest of a block is too short for another head
            at += -at % 32768
        size, kind = struct.unpack_from("<4xHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(record))
            record = b""
    rows = [one.history for one in found if one.WhichOneof("record_type") == "history"]
    return [{"/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


def test_wandb(tmp_path, offline):
    """The user's own steps are ahead of ours: W&B would drop what is logged at a step that it has behind it."""
    wandb = pytest.importorskip("wandb")
    with pytest.raises(ValueError, match=r"give .* a W&B run"):
        as_logger(wandb)  # before wandb.init()
    run = wandb.init(project="stgt", dir=tmp_path)
    run.log({"own": 1.0}, step=50)
    descend(3, logger=run)
    descend(1, logger=wandb)
    as_logger(run).log(ODD, 9)
    run.log({"own": 2.0}, step=100)
    path = Path(run.settings.sync_file)
    run.finish()
    wandb.teardown()
    found = history(path)
    steps = [row["_step"] for row in found]
    assert steps == sorted(set(steps))
    assert [row["own"] for row in found if "own" in row] == [1, 2]
    residuals = [(row["stgt/round"], row["residual"]) for row in found if "residual" in row]
    assert residuals == [(r, 0.25**r) for r in (0, 1, 2, 3, 0, 1)]
    (odd,) = (row for row in found if "a/b" in row)
    assert {name: odd[name] for name in ODD} == pytest.approx(ODD, nan_ok=True)
    assert odd["stgt/round"] == 9


@pytest.mark.thorough  # importing it takes longer than all of the above
def test_mlflow(tmp_path, offline):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        descend(3, logger=mlflow)
        as_logger(mlflow).log(ODD, 9)
        methods, options = [stgt.DPSGD(tau=1), stgt.FlexGT(tau=1)], {"x0": [1.0], "engine": "numpy"}
        stgt.compare(methods, LINE, BOTH, 2, **options, grid={"gamma": [0.5]}, metrics=["residual"], logger=mlflow)
    client = mlflow.MlflowClient()

    def kept(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]

    assert kept("residual") == [(r, 0.25**r) for r in range(4)]
    assert kept("a/b") == [(9, 0.1)]
    assert math.isnan(kept("not a number")[0][1])
    assert kept("too much") == [(9, math.inf)]
    # From threads other than the run's, under a name without the brackets that MLflow refuses.
    assert kept("D-PSGD/residual") == kept("FlexGT _first_/residual") == [(r, 0.25**r) for r in range(3)]
    assert [one.info.run_id for one in client.search_runs(["0"])] == [run.info.run_id], "no other run was begun"
