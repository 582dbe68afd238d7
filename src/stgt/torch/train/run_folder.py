"""The folder of a training's results: whose it is, what rank 0 calls its files, and giving it back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stgt._internal.files import write_text
from stgt.study.spec import spec_text
from stgt.study.spec.training import Training, TrainingSpec

PROGRESS = "progress.json"  # rounds done and in all, from the first round on
CURVE = "curve.csv"
MODEL = "model.safetensors"  # written last: the run is finished
NOT_FINITE = "not-finite.txt"  # why a run is over without a model
EVENTS = "events.out.tfevents.*.stgt"  # TensorBoard's
BEFORE_TRAINING = (CURVE, EVENTS, NOT_FINITE)  # what a run may have written before its first round is done


@dataclass(frozen=True)
class Claim:
    """A folder that holds the runs of a spec.

    Attributes:
        spec: the spec's file in it.
        new: was it written by this claim?
        made: folders that were missing before, the innermost first.
    """

    spec: Path
    new: bool
    made: tuple[Path, ...] = ()

    def give_back(self) -> None:
        """Removes what was written since the claim, of a training without a finished round; never anything else."""
        if not self.new:
            return
        self.spec.unlink(missing_ok=True)
        for folder in self.made:
            for pattern in BEFORE_TRAINING:
                for path in folder.glob(pattern):
                    path.unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def claim_folder(out: Path, runs: TrainingSpec) -> Claim:
    """Makes the folder and writes the spec into it; a ValueError if it holds the runs of another one."""
    text, path = spec_text(runs), out / "spec.toml"
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") != text:
                raise ValueError(f"out {out} holds the runs of another spec: give another folder.")
            return Claim(path, new=False)
        folders = [*(out / run.folder for run in runs.runs), out, *out.parents]
        missing = tuple(folder for folder in folders if not folder.exists())
        return Claim(write_text(path, text), new=True, made=missing)
    except OSError as error:
        raise ValueError(f"out {out} cannot be written ({error.strerror}): give another folder.") from None


def not_finite(out: Path, runs: TrainingSpec) -> dict[str, str]:
    """By the name of each run that left the finite numbers: the words with which it did."""
    found = {run.name: out / run.folder / NOT_FINITE for run in runs.runs}
    return {name: path.read_text(encoding="utf-8").strip() for name, path in found.items() if path.exists()}


def unfinished(out: Path, runs: TrainingSpec) -> list[Training]:
    """The runs that have neither a model nor left the finite numbers, in order."""
    over = not_finite(out, runs)
    return [run for run in runs.runs if run.name not in over and not (out / run.folder / MODEL).exists()]
