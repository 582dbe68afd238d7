"""Why a training ended before its time, in a sentence, and how it goes on: from what its processes have left behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch.train.run_folder import not_finite, unfinished

# Exit codes, of each process and of `stgt train`.
FAILED, MENDABLE, LOST, NONFINITE = 1, 2, 3, 4
SAYS = "stgt: "  # what a process has to say of itself begins so,
SAYS_OF_ANOTHER = "stgt (a node was lost): "  # and so what it has to say of another one
_RANK = re.compile(r"\s+rank\s+: (\d+) \(local_rank: \d+\)")
_EXIT = re.compile(r"\s+exitcode\s+: (-?\d+)\s+\(pid: (\d+)\)")


class StoppedTrainingError(ValueError):
    """A training that ended before its time, with the exit code that says why."""

    def __init__(self, words: str, code: int):
        super().__init__(words)
        self.code = code


def why(lines: Sequence[str], code: int, out: Path, runs: TrainingSpec) -> StoppedTrainingError:
    """Why torchrun ended with this code, by what it and the processes printed and wrote.

    What a process says of itself tells more than what others say of it, and a signal more than those who lost the node.
    """
    diverged = not_finite(out, runs)
    if diverged:
        words = (left_finite(run, diverged[run.name], out) for run in runs.runs if run.name in diverged)
        return StoppedTrainingError(" ".join(words), NONFINITE)
    said = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
    if said:
        crashed = re.match(r"rank \d+ failed: ", said[0])
        return StoppedTrainingError(said[0], FAILED if crashed else MENDABLE)
    killed = _killed(lines, code)
    lost = [line.removeprefix(SAYS_OF_ANOTHER) for line in lines if line.startswith(SAYS_OF_ANOTHER)]
    if killed or lost:
        return StoppedTrainingError(f"{killed or lost[0]} {how_to_go_on(out, runs)}", LOST)
    return StoppedTrainingError("the training ended without a word of its own: " + " / ".join(lines[-3:]), FAILED)


def left_finite(run: Training, words: str, out: Path) -> str:
    """What a run that left the finite numbers said, and where the last checkpoint before that is."""
    found = last_checkpoint(out / run.folder / "checkpoints")
    where = f"The checkpoint of round {found[0]} is {found[1]}." if found else "There is no checkpoint from before."
    return f"{run.name}: {words} {where}"


def how_to_go_on(out: Path, runs: TrainingSpec) -> str:
    """From where the same command continues."""
    run = next(iter(unfinished(out, runs)), runs.runs[-1])
    found = last_checkpoint(out / run.folder / "checkpoints")
    if found is None:
        once = "" if run.checkpoint_every else "; checkpoint_every = 10 in the spec would write one every ten rounds"
        return f"There is no checkpoint of {run.name!r}: the same command starts that run again{once}."
    return f"The same command goes on from round {found[0]} of {run.name!r}, whose checkpoint is {found[1]}."


def last_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """The round and the folder of the newest checkpoint that all nodes have written."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        parts = sorted(path.glob("node-*.json"))
        try:
            about = json.loads(parts[0].read_text(encoding="utf-8")) if parts else {"nodes": 1}
        except (OSError, ValueError):
            continue
        if len(parts) == about["nodes"]:
            return about["round"], path
    return None


def _killed(lines: Sequence[str], code: int) -> str:
    """Who ended by a signal, by torchrun's report; "" if nobody did. Those whom torchrun itself ended come last."""
    found, rank = [], ""
    for line in lines:
        if match := _RANK.match(line):
            rank = match[1]
        elif (match := _EXIT.match(line)) and int(match[1]) < 0:
            found.append((-int(match[1]), f"rank {rank} (process {match[2]})"))
    if not found and code < 0:
        found.append((-code, "torchrun, which had started the processes,"))
    if not found:
        return ""
    number, who = min(found, key=lambda one: one[0] == signal.SIGTERM)
    names = {one.value: one.name for one in signal.Signals}
    reason = ""
    if number == signal.SIGKILL:
        reason = ", which is what the system does where memory runs out (`dmesg` tells)"
    return f"{who} was killed by {names.get(number, f'signal {number}')}{reason}."
