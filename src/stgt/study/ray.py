"""Runs the batches of a study on a Ray cluster. Tasks send back their states; another worker continues a lost task."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stgt._internal.checks import InputError, quoted
from stgt._internal.files import write_atomically
from stgt._internal.progress import Bar, Progress
from stgt._internal.registry import import_script
from stgt.simulator.drive import Interrupt
from stgt.simulator.store import CheckpointFile, load
from stgt.study.execution import INTERVAL, LostWorkersError, OnSave, run_batch
from stgt.study.plans import Batch

TICK = 0.5  # seconds between two reports of a task's progress
LOSSES = 3  # the study stops after more lost workers in a row than this, without a round in between
WAIT = 30  # seconds to wait for the cluster's answer


class RayCluster:
    """A cluster that runs batches. Its workers need the same versions of the libraries, but no files of this machine.

    Args:
        address: the address of the cluster, "auto" for the one that this machine belongs to, "local" to start one here.
        notify: called with a message for the user, for example that a worker was lost.
        scripts: your scripts, which the workers import too.
    """

    def __init__(self, address: str, notify: Callable[[str], object], scripts: Sequence[Path] = ()):
        self._ray, self._notify = _connected(address), notify
        self._scripts = [(path.name, path.read_text(encoding="utf-8"), str(path.resolve())) for path in scripts]
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(_work)
        self.workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, batch: Batch, state: Path, on_save: OnSave, interrupt: Interrupt, progress: Progress) -> None:
        """Runs a batch on a worker, as `RemoteWorkers` describes."""
        exceptions, packed = self._ray.exceptions, self._ray.put(self._ray.cloudpickle.dumps(batch))
        lost = done = 0
        while True:
            begun = state.read_bytes() if state.exists() else None
            stream = self._task.remote(packed, begun, self._scripts)
            try:
                for reference in stream:
                    rounds = self._take(self._ray.get(reference), state, on_save, progress)
                    lost, done = (0, rounds) if rounds > done else (lost, done)
                    if interrupt.asked:
                        self._ray.cancel(stream, force=False)
                        interrupt.cut = True
                        return
                return
            except exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, ValueError) else error from None
            except (exceptions.RayError, ConnectionError) as error:
                lost += 1
                if lost > LOSSES or not self._ray.is_initialized():
                    raise LostWorkersError(
                        f"{batch.method} lost {lost} workers in a row ({type(error).__name__}), the last after {done} "
                        "rounds, which are saved."
                    ) from None
                self._notify(f"{batch.method}: a worker was lost; another continues from round {done}.")

    @staticmethod
    def _take(message: Any, state: Path, on_save: OnSave, progress: Progress) -> int:
        """Handles a message of a task, its state or its progress. Returns the rounds that are newly saved, or 0."""
        if isinstance(message, bytes):
            write_atomically(state, lambda file: file.write_bytes(message), durable=True)
            traces = load(state)
            on_save(traces)
            return traces[0].rounds
        done, total, pace, latest = message
        progress(done, total)
        if latest and isinstance(progress, Bar):
            progress.describe(pace, latest)
        return 0


def _connected(address: str) -> Any:
    try:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
            os.environ.setdefault(name, "0")
        import ray
    except ImportError:
        raise ValueError("ray is not installed: pip install 'stgt[ray]', or do not use ray.") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ray.is_initialized():
        return ray
    if address == "local":
        ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False, **quiet)
        return ray
    answer: queue.Queue[BaseException | None] = queue.Queue()

    def connect() -> None:
        try:
            _check_listening(address)
            ray.init(address=address, **quiet)
            answer.put(None)
        except BaseException as error:
            answer.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        error = answer.get(timeout=WAIT)
    except queue.Empty:
        error = TimeoutError(f"no answer within {WAIT} s")
    if error is not None:
        reason = quoted(error)
        raise InputError(
            "ray",
            address,
            f" cannot be reached ({reason}): start a cluster with `ray start --head`, and give its address, auto, or "
            "local to start one here.",
        ) from None
    return ray


def _check_listening(address: str) -> None:
    """Raises an OSError if nothing listens at an address; otherwise Ray would print an error every second."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()


class _QueuedProgress(Bar):
    """Puts the progress of a task into a queue, at most every TICK seconds."""

    def __init__(self, messages: queue.Queue[Any]):
        self._messages, self._last = messages, 0.0
        self._pace, self._latest = 0.0, dict[str, float]()

    def __call__(self, done: float, total: float) -> None:
        if done >= total or time.monotonic() - self._last > TICK:
            self._last = time.monotonic()
            self._messages.put((done, total, self._pace, self._latest))

    def describe(self, pace: float, latest: Mapping[str, float]) -> None:
        self._pace, self._latest = pace, dict(latest)


def _work(packed: bytes, state: bytes | None, scripts: list[tuple[str, str, str]]) -> Iterator[Any]:
    """The task: runs a batch, yields its states as bytes and its progress as (done, total, pace, latest)."""
    from ray import cloudpickle

    messages: queue.Queue[Any] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for name, source, original in scripts:
            here = Path(original)
            if not (here.is_file() and here.read_text(encoding="utf-8") == source):
                here = Path(folder) / name
                here.write_text(source, encoding="utf-8")
            import_script(here)
        batch: Batch = cloudpickle.loads(packed)
        path = Path(folder) / "state.stgt"
        if state is not None:
            path.write_bytes(state)
        checkpoint = CheckpointFile(path, INTERVAL, lambda traces: messages.put(path.read_bytes()))

        def run() -> None:
            try:
                run_batch(batch, checkpoint, Interrupt(), _QueuedProgress(messages))
                messages.put(None)
            except BaseException as error:
                messages.put(error)

        threading.Thread(target=run, daemon=True).start()
        while (message := messages.get()) is not None:
            if isinstance(message, BaseException):
                raise message
            yield message
