"""Traces in a file, and the checkpoint file of a run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from stgt._internal import container
from stgt._internal.checks import InputError
from stgt._internal.files import check_writable, writing
from stgt._internal.registry import ALGORITHMS, METRICS, ORACLES
from stgt.problems.base import Problem
from stgt.simulator.job import RunState
from stgt.simulator.serialize import Serialized, deserialize, serialize, stored_mean_model_loss
from stgt.simulator.trace import Trace
from stgt.topology import Topology

KIND, COMPARISON = "trace", "comparison"
SMALL = 512  # up to this many nodes ρ is computed for the file, if it is not known yet
STALE = 3600  # after this many seconds, a half-written file is assumed to be of a killed process
INTERVAL = 30.0  # seconds between two checkpoints, if no number of rounds is given


def save(traces: Sequence[Trace], path: Path, about: Mapping[str, Any] | None = None) -> Path:
    """Writes traces atomically, those of a comparison with plain data about it; returns the path."""
    arrays = {f"{i}/{name}": array for i, trace in enumerate(traces) for name, array in _arrays(trace).items()}
    plain = [_plain(trace) for trace in traces]
    with writing(path):
        if about is not None:
            return container.write(path, COMPARISON, arrays, {"traces": plain, "about": about})
        return container.write(path, KIND, arrays, plain)


def load(path: Path) -> list[Trace]:
    """Reads what `save` wrote; a ValueError says what is wrong with the file."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; give one that trace.save or checkpoint= wrote.")
    arrays, plain = container.read(path, KIND)
    return _traces(path, KIND, plain, arrays)


def load_comparison(path: Path) -> tuple[list[Trace], dict[str, Any]]:
    """The traces of a comparison, and the data about it."""
    arrays, plain = container.read(path, COMPARISON)
    try:
        return _traces(path, COMPARISON, plain["traces"], arrays), dict(plain["about"])
    except (KeyError, TypeError):
        raise container.BadFile(path, "foreign", COMPARISON) from None


def _traces(path: Path, kind: str, plain: Any, arrays: dict[str, np.ndarray]) -> list[Trace]:
    try:
        found = [_trace(one, _of(arrays, f"{i}/")) for i, one in enumerate(plain)]
    except (KeyError, TypeError, ValueError, AttributeError):
        found = []
    if not found:  # its checksum is correct, so it was forged
        raise container.BadFile(path, "foreign", kind)
    return found


def _arrays(trace: Trace) -> dict[str, np.ndarray]:
    run_state = trace.run_state
    found = {"seconds": trace.seconds, "links": run_state.links, "diverged_at": run_state.diverged_at}
    for group, values in (("values", trace.values), ("state", run_state.state), ("memory", run_state.memory)):
        found |= {f"{group}/{name}": value for name, value in values.items()}
    return found if run_state.ahead is None else {**found, "ahead": run_state.ahead}


def _plain(trace: Trace) -> dict[str, Any]:
    topology, loss = dict(serialize(trace.topology, trace.rounds)), stored_mean_model_loss(trace)
    has_rho = "rho" in topology or trace.topology.n <= SMALL or "rho" in vars(trace)
    return {
        "algorithm": {**serialize(trace.algorithm, trace.rounds), "label": trace.algorithm.label},
        "problem": {**serialize(trace.problem), "mean_model_loss": None if np.isnan(loss) else loss},
        "topology": {**topology, "rho": trace.rho if has_rho else None},
        "oracle": serialize(trace.oracle),
        "origin": trace.origin,
        "seeds": list(trace.seeds),
        "rounds": trace.rounds,
        "measured": list(trace.measured),
        "engine": trace.engine,
        "dtype": trace.dtype,
        "interrupted": trace.interrupted,
        "absent": trace.absent,
        "notes": list(trace.notes),
    }


def _trace(one: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trace:
    return Trace(
        algorithm=deserialize("algorithm", ALGORITHMS, one["algorithm"]),
        problem=cast(Problem, Serialized("problem", one["problem"])),
        topology=cast(Topology, Serialized("topology", one["topology"])),
        oracle=deserialize("oracle", ORACLES, one["oracle"]),
        origin=one["origin"],
        seeds=tuple(one["seeds"]),
        values=_of(arrays, "values/"),
        seconds=arrays["seconds"],
        run_state=RunState(
            rounds=one["rounds"],
            state=_of(arrays, "state/"),
            memory=_of(arrays, "memory/"),
            ahead=arrays.get("ahead"),
            diverged_at=arrays["diverged_at"],
            links=arrays["links"],
        ),
        measured={name: METRICS.get(name) for name in one["measured"]},
        engine=one["engine"],
        dtype=one["dtype"],
        interrupted=one["interrupted"],
        absent=one["absent"],
        notes=tuple(one["notes"]),
    )


def _of(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """The file to which a run saves itself regularly.

    Attributes:
        path: of the file.
        interval: seconds between two checkpoints, if no number of rounds is given.
        on_save: called with the saved traces each time; the last ones are not `interrupted` if the run is complete.
    """

    path: Path
    interval: float = INTERVAL
    on_save: Callable[[list[Trace]], object] | None = None

    def save(self, traces: list[Trace]) -> None:
        """Saves the traces. If that fails, for example on a full disk, there is a warning and the run continues."""
        try:
            save(traces, self.path)
        except ValueError as error:
            warnings.warn(f"checkpoint: {error} The run continues; the last checkpoint is still there.", stacklevel=2)
        if self.on_save is not None:
            self.on_save(traces)


def as_checkpoint(given: Any) -> CheckpointFile | None:
    """The argument `checkpoint=` as a file. If its path cannot be written to, a ValueError is raised before the run."""
    if given is None:
        return None
    if isinstance(given, CheckpointFile):
        _check_path(given.path)
        return given
    return CheckpointFile(_check_path(given))


def _check_path(given: Any) -> Path:
    """The path, if a file can be written there. Removes half-written files that a killed process left next to it."""
    if not isinstance(given, str | Path):
        raise InputError("checkpoint", given, "give the path of a file, such as 'run.stgt'.")
    path = Path(given).expanduser()
    try:
        check_writable(path.parent)
        for leftover in path.parent.glob(f".{path.stem}-*{path.suffix}"):
            if time.time() - leftover.stat().st_mtime > STALE:
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("checkpoint", path, f" cannot be written ({error.strerror}): give another path.") from None
    if path.is_dir():
        raise InputError("checkpoint", path, " is a folder: give the path of a file, such as run.stgt.")
    return path


def load_checkpoint(path: Path, count: int, rounds: int, resumed: list[Trace] | None) -> list[Trace]:
    """The traces of a checkpoint, checked: `count` of them, at most `rounds` rounds, a continuation of `resumed`."""
    traces = load(path)
    if len(traces) != count:
        raise InputError("checkpoint", path, f" has {len(traces)} runs, and not {count}: give another path.")
    made = traces[0].rounds
    if made > rounds:
        raise InputError(
            "checkpoint",
            path,
            f" has {made} rounds, more than the {rounds} requested: give more rounds, or another path.",
        )
    for one, other in zip(traces, resumed or [], strict=resumed is not None):
        begun = other.rounds  # up to this round both were measured by the same run
        same = set(one.values) == set(other.values) and made >= begun
        if not same or any(not _equal(one.values[name], other.values[name], begun) for name in one.values):
            raise InputError(
                "checkpoint",
                path,
                " does not continue the trace given as resume: give another path, or leave one out.",
            )
    return traces


def _equal(one: np.ndarray, other: np.ndarray, rounds: int) -> bool:
    return np.array_equal(one[:, :rounds], other[:, :rounds], equal_nan=True)
