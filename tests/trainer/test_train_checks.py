"""What `stgt train` checks and says before anything is trained, and that it leaves nothing behind where it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from reproductions import images, register  # noqa: F401  (the models by their names)
from stgt.torch.train import LabelledData, TrainingSpec, create_run_folder, launcher, load_training
from stgt.torch.train.preflight import SEEN, cautions

ROOT = Path(__file__).parents[2]
RUN = {
    "rounds": 4,
    "data": {"name": "mnist", "partition": "label", "classes": 5},
    "model": {"name": "mlp"},
    "optimizer": {"name": "SGD", "lr": 0.1},
    "algorithm": {"name": "STGT", "tau": 5},
    "topology": {"name": "ring"},
}


def spec(*changes: dict) -> TrainingSpec:
    """A run for each dict of tables and entries to exchange."""
    return TrainingSpec.model_validate({"runs": [RUN | {"label": f"run {i}"} | one for i, one in enumerate(changes)]})


def digits() -> LabelledData:
    """Ten black images of each digit."""
    x, y = np.zeros((100, 1, 28, 28), np.uint8), np.arange(100) % 10
    return LabelledData(x, y, x, y, 10, *images.NORMALISATION["mnist"])


@pytest.fixture
def no_process(monkeypatch):
    """The data set is at hand, and no process may start."""
    monkeypatch.setattr(images, "load_images", lambda *_: digits())
    monkeypatch.setattr(launcher, "_run", lambda *_: pytest.fail("a process was started"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"name": "mlp", "width": 4}}, "model.width: mlp takes shape, classes, hidden"),
        ({"model": {"name": "mlp", "hidden": 0}}, "model.hidden=0: give a whole number"),
        ({"model": {"name": "mlp", "classes": 4}}, "model.classes is that of the data set: leave it out."),
        ({"model": {"name": "lenet5"}}, "model.name='lenet5': choose from 'resnet18', 'lenet', 'mlp'"),
        ({"optimizer": {"name": "SDG", "lr": 0.1}}, "optimizer.name='SDG': give a class of torch.optim"),
        ({"optimizer": {"name": "SGD", "lr": 0.1, "momemtum": 0.9}}, "optimizer.momemtum: SGD takes"),
        ({"optimizer": {"name": "SGD", "lr": 0.1, "momentum": -1.0}}, "Invalid momentum value: -1.0"),
        ({"optimizer": {"name": "SGD"}}, "optimizer.lr was left out"),
        ({"optimizer": {"name": "LBFGS", "lr": 0.1}}, "optimizer is LBFGS"),
        ({"optimizer": {"name": "SGD", "lr": 0.1, "maximize": True}}, "optimizer has maximize=True"),
        ({"optimizer": {"name": "SGD", "lr": 0.1, "fused": True, "foreach": True}}, "`fused` and `foreach` cannot be"),
        ({"algorithm": {"name": "GTSAGA"}}, "GT-SAGA needs the oracle SAGA, which the trainer does not support"),
        ({"algorithm": {"name": "STGT", "tau": 5, "gamma": 0.1}}, "gamma=0.1: leave it out"),
        ({"topology": {"name": "hypercube"}}, "topology.name='hypercube': choose from"),
        ({"topology": {"name": "server", "sampled": 9}}, "sampled=9"),
        ({"algorithm": {"name": "FlexGT", "tau": 5}, "early": True}, "early=True: FlexGT (first) cannot send half"),
        ({"optimizer": {"name": "AdamW", "lr": 0.1}, "early": True}, "early=True needs plain SGD"),
        (
            {"algorithm": {"name": "FedAvg"}, "topology": {"name": "server"}, "message_dtype": "float16"},
            "message_dtype='float16': the server's variables",
        ),
        (
            {"data": {"name": "mnist", "partition": "label", "classes": 1}},
            "classes=1: 4 nodes with 1 labels each leave",
        ),
    ],
)
def test_a_spec_that_is_refused_claims_no_folder(no_process, tmp_path, change, words):
    out = tmp_path / "runs" / "first"
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the words are compared below, as they stand
        launcher.launch(spec(change), 4, out)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not out.parent.exists()
    with pytest.raises(ValueError, match=r"^run 'run 1': ") as error:  # of several, it says which
        launcher.launch(spec({}, change), 4, out)
    assert words in str(error.value)
    assert not out.parent.exists()


def test_a_folder_is_given_back_as_it_was(tmp_path):
    runs = spec({}, {})
    out = tmp_path / "new" / "runs"
    folder = create_run_folder(out, runs)
    (out / "run-0").mkdir()
    for name in ("curve.csv", "events.out.tfevents.1.host.2.0.stgt"):
        (out / "run-0" / name).write_text("")
    folder.remove_unused()
    assert not (tmp_path / "new").exists()
    # What is somebody else's stays: a file, a folder that a run would have used, and what another training claimed.
    (out / "run-0").mkdir(parents=True)
    for path in (out / "notes.txt", out / "run-0" / "curve.csv"):
        path.write_text("mine")
    folder = create_run_folder(out, runs)
    (out / "run-1").mkdir()
    (out / "run-1" / "mine.txt").write_text("mine")
    folder.remove_unused()
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "run-0/curve.csv", "run-1/mine.txt"}
    create_run_folder(out, runs)
    create_run_folder(out, runs).remove_unused()
    assert (out / "spec.toml").exists()


def test_a_training_that_ends_before_its_first_round_gives_the_folder_back(monkeypatch, tmp_path):
    monkeypatch.setattr(images, "load_images", lambda *_: digits())
    out, error = tmp_path / "runs", tmp_path / "error.json"
    message = {"message": "ValueError: the device has no memory left.", "extraInfo": {"timestamp": "1"}}
    error.write_text(json.dumps({"message": message}))

    def found_something(*_) -> tuple[dict[int, ProcessFailure], list[str]]:
        assert (out / "spec.toml").exists()
        return {0: ProcessFailure(0, 4000, launcher.BAD_INPUT, str(error))}, []

    def found_it_later(*_) -> tuple[dict[int, ProcessFailure], list[str]]:
        (out / "progress.json").write_text('{"done": 1, "total": 4}')
        return found_something()

    for run, kept in ((found_something, False), (found_it_later, True)):
        monkeypatch.setattr(launcher, "_run", run)
        with pytest.raises(ValueError, match=r"^the device has no memory left\.$"):
            launcher.launch(spec({}), 4, out)
        assert out.exists() == kept


def test_a_stepsize_at_which_a_tracker_was_seen_to_fail_is_called_so():
    limit = SEEN["lenet", "two classes a node"].reach
    lenet = {"model": {"name": "lenet"}, "data": {"name": "mnist", "partition": "label", "classes": 2}}

    def rate(reach: float) -> dict:
        return lenet | {"optimizer": {"name": "SGD", "lr": reach / 5}}

    (said,) = cautions(spec(rate(limit)))
    assert said.startswith(f"run 0: lr · tau = {limit:g}; ")
    assert "on MNIST with two classes a node" in said
    assert "give a smaller optimizer.lr or algorithm.tau" in said
    assert "\n" not in said
    for harmless in (
        rate(0.99 * limit),
        rate(limit) | {"algorithm": {"name": "DPSGD", "tau": 5}},  # no tracker
        rate(limit) | {"data": {"name": "mnist"}},  # iid: fails later
        rate(limit) | {"algorithm": {"name": "DSGT"}, "optimizer": {"name": "SGD", "lr": limit}},  # one step a round
        rate(limit) | {"optimizer": {"name": "AdamW", "lr": limit / 5}},  # another measure of a stepsize
        rate(limit) | {"model": {"name": "resnet18"}},  # BatchNorm: not seen to fail
    ):
        assert cautions(spec(harmless)) == []
    for name in ("Outer", "Adaptive"):
        relaxed, plain = (
            rate(limit) | {"algorithm": {"name": name, "tau": 5, "method": {"name": "STGT", "beta": beta}}}
            for beta in (0.25, 1.0)
        )
        assert cautions(spec(relaxed)) == []
        assert len(cautions(spec(plain))) == 1
    assert len(cautions(spec(rate(1.0), rate(0.01), rate(2.0)))) == 2
    (said,) = cautions(spec(rate(1.0) | {"data": {"name": "mnist"}}))
    assert "on MNIST with iid data" in said


def test_no_example_is_known_to_fail():
    for name in ("mnist", "cifar10"):
        assert cautions(load_training(ROOT / "examples" / f"{name}.toml")) == []
