"""Starts a training on this machine with torch's elastic agent, follows it, and finds out why it ended early."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stgt._internal import container
from stgt._internal.progress import Progress
from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch.shards import KIND as SHARD
from stgt.torch.train.data import load_data
from stgt.torch.train.preflight import check_ready
from stgt.torch.train.run_folder import PROGRESS, Lines, create_run_folder, not_finite, unfinished

# Exit codes, of each process and of `stgt train`.
FAILED, BAD_INPUT, LOST, NONFINITE = 1, 2, 3, 4
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by the agent, which ends its processes
PAUSE = 0.3  # seconds between two checks of the progress


class StoppedTrainingError(ValueError):
    """A training ended early; `code` is the exit code for the reason."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def launch(
    spec: TrainingSpec,
    nodes: int,
    out: Path,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    max_restarts: int = 0,
    timeout: float = 300.0,
    scripts: Iterable[Path] = (),
    progress: Progress | None = None,
    print_line: Callable[[str], None] | None = None,
) -> None:
    """Runs a spec in `nodes` processes of one thread each.

    What can be checked without the processes is checked before they start and before the folder is created: it raises a
    ValueError. A StoppedTrainingError has the reason why a training ended. A training without a finished round leaves
    nothing behind. If a run diverges, the other runs are still trained, and the error is raised at the end.

    Args:
        spec: what to train.
        nodes: the number of processes; each is a node.
        out: folder for the results; an interrupted training in it continues.
        data_dir: folder with the data set.
        download: download the data set into that folder if it is missing.
        max_restarts: how often the processes are restarted after one has died.
        timeout: seconds without progress after which a node counts as lost.
        scripts: scripts that register models, data sets or methods. The caller and each process import them first.
        progress: called with the completed and the total number of rounds, from another thread.
        print_line: called with a line for each measurement, from another thread.
    """
    check_ready(spec, nodes, load_data(spec, data_dir, download))
    folder = create_run_folder(out, spec)
    arguments = ["--spec", str(folder.spec), "--out", str(out), "--timeout", str(timeout)]
    arguments += ["--data-dir", str(data_dir)] if data_dir is not None else []
    arguments += [word for script in scripts for word in ("--import", str(script))]
    lines = Lines(spec, out)

    def follow() -> None:
        if progress is not None:
            _follow(out / PROGRESS, progress)
        if print_line is not None:
            for line in lines.new():
                print_line(line)

    try:
        while True:
            diverged = not_finite(out, spec)
            failures, printed = _run(arguments, nodes, max_restarts, follow)
            if not failures:
                return
            # The processes that lost a node because of it have ended too: new ones train the remaining runs.
            if not_finite(out, spec) == diverged or not unfinished(out, spec):
                break
        stopped = reason_of(failures, printed, out, spec)
        raise ValueError(str(stopped)) if stopped.code == BAD_INPUT else stopped
    finally:
        if not (out / PROGRESS).exists():
            folder.remove_unused()


# -- the processes ---------------------------------------------------------------------------------------------------


def _run(
    arguments: Sequence[str], nodes: int, max_restarts: int, follow: Callable[[], None]
) -> tuple[dict[int, ProcessFailure], list[str]]:
    """Runs the processes until they end. Returns the failures by rank, and the last lines of the first to fail."""
    with tempfile.TemporaryDirectory(prefix="stgt-train-") as logs, _agent_here(), _following(follow):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nodes,
            run_id=uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "stgt.torch.train", *arguments)
        except ChildFailedError as error:
            _, first = error.get_first_failure()
            return error.failures, _last_lines(Path(logs), first.local_rank)
        except SignalException as error:  # the agent has ended the processes
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + error.sigval) from None
    return {}, []


@contextmanager
def _agent_here() -> Iterator[None]:
    """Silences the agent's log and sets one thread per process; restores this process's settings afterwards."""
    logger, silent = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    threads, main = os.environ.get("OMP_NUM_THREADS"), threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    logger.addHandler(silent)
    logger.propagate, os.environ["OMP_NUM_THREADS"] = False, "1"
    try:
        yield
    finally:
        logger.removeHandler(silent)
        logger.propagate = True
        os.environ.pop("OMP_NUM_THREADS")
        os.environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
        for number, handler in handlers.items() if main else ():
            signal.signal(number, handler)


@contextmanager
def _following(follow: Callable[[], None]) -> Iterator[None]:
    """Calls `follow` regularly from a thread, because the agent needs the main one for signals. Its error ends all."""
    ended, errors = threading.Event(), []

    def look() -> None:
        try:
            while not ended.wait(PAUSE):
                follow()
        except BaseException as error:
            errors.append(error)
            interrupt_main()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if errors:
            raise errors[0]
    follow()


def _follow(path: Path, progress: Progress) -> None:
    try:
        at = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    progress(at["done"], at["total"])


def _last_lines(logs: Path, local_rank: int) -> list[str]:
    """The last lines that a process printed to standard error."""
    paths = sorted(logs.glob(f"*/attempt_*/{local_rank}/stderr.log"), key=os.path.getmtime)
    return paths[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-3:] if paths else []


# -- the reason why a training ended ---------------------------------------------------------------------------------


def reason_of(
    failures: Mapping[int, ProcessFailure], printed: Sequence[str], out: Path, runs: TrainingSpec
) -> StoppedTrainingError:
    """Why the processes ended, from torch's error files, the exit codes and the folder.

    It is the first of these that occurred: values that are not finite, an error of a process, a signal, a lost node.
    """
    diverged = not_finite(out, runs)
    if diverged:
        words = (_left_finite(run, diverged[run.name], out) for run in runs.runs if run.name in diverged)
        return StoppedTrainingError(" ".join(words), NONFINITE)
    in_order = sorted(failures.items(), key=lambda one: one[1].timestamp)
    errors = {rank: error for rank, failure in in_order if (error := _error(failure))}
    for rank, error in errors.items():
        code = failures[rank].exitcode
        if code == FAILED:
            return StoppedTrainingError(f"rank {rank} failed: {error}", FAILED)
        if code in (BAD_INPUT, NONFINITE):
            return StoppedTrainingError(_sentence(error), code)
    lost = [_sentence(error) for rank, error in errors.items() if failures[rank].exitcode == LOST]
    killed = _killed(dict(in_order))
    if killed or lost:
        return StoppedTrainingError(f"{killed or lost[0]} {_how_to_go_on(out, runs)}", LOST)
    return StoppedTrainingError("the training ended without an error of its own: " + " / ".join(printed), FAILED)


def _error(failure: ProcessFailure) -> str:
    """The exception that ended a process, as `record` wrote it: its type, a colon, its text; "" if there is none."""
    message: object = failure.error_file_data.get("message")
    return str(message.get("message", "")) if isinstance(message, dict) else ""


def _sentence(error: str) -> str:
    return error.partition(": ")[2]


def _killed(failures: Mapping[int, ProcessFailure]) -> str:
    """The process that a signal ended; "" if there is none. Processes that the agent ended are considered last."""
    found = [(rank, failure) for rank, failure in failures.items() if failure.exitcode < 0]
    if not found:
        return ""
    rank, failure = min(found, key=lambda one: one[1].exitcode == -signal.SIGTERM)
    names = {-one.value: one.name for one in signal.Signals}
    reason = ""
    if failure.exitcode == -signal.SIGKILL:
        reason = ", which is what the system does when it runs out of memory (`dmesg` shows it)"
    name = names.get(failure.exitcode, f"signal {-failure.exitcode}")
    return f"rank {rank} (process {failure.pid}) was killed by {name}{reason}."


def _left_finite(run: Training, words: str, out: Path) -> str:
    """The error of a run that diverged, and where its last checkpoint is."""
    found = _last_checkpoint(out / run.folder / "checkpoints")
    where = f"The checkpoint of round {found[0]} is {found[1]}." if found else "There is no earlier checkpoint."
    return f"{run.name}: {words} {where}"


def _how_to_go_on(out: Path, runs: TrainingSpec) -> str:
    """From which round the same command continues."""
    run = next(iter(unfinished(out, runs)), runs.runs[-1])
    found = _last_checkpoint(out / run.folder / "checkpoints")
    if found is None:
        once = "" if run.checkpoint_every else "; checkpoint_every = 10 in the spec would write one every ten rounds"
        return f"There is no checkpoint of {run.name!r}: the same command starts that run again{once}."
    return f"The same command continues from round {found[0]} of {run.name!r}, whose checkpoint is {found[1]}."


def _last_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """The round and the folder of the newest checkpoint that all nodes have written."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        parts = sorted(path.glob("node-*.safetensors"))
        try:
            about = container.read_meta(parts[0], SHARD) if parts else {"nodes": 1}
        except container.BadFile:
            continue
        if len(parts) == about["nodes"]:
            return about["round"], path
    return None
