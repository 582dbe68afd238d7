"""The folder of a study on disk: its spec, its progress, and the states and measurements of its batches.

Every file is written atomically, except metrics.csv, to which rows are added. Its last row may be cut off if the
process is killed. To resume, a run needs only run.json and the state.stgt of each batch.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from stgt._internal.checks import InputError
from stgt._internal.digest import digest_of_file
from stgt._internal.files import output_folder, write_text
from stgt.simulator import Rule
from stgt.simulator.serialize import first_difference
from stgt.simulator.store import load
from stgt.simulator.trace import Trace
from stgt.study.execution import STATE
from stgt.study.plans import KINDS, Batch, Plan
from stgt.study.spec import spec_text
from stgt.study.spec.runs import Spec

RECORD, SPEC, LOCK = "run.json", "spec.toml", ".lock"
RESULTS = ("summary.csv", "curves.png", "curves.pdf", "report.html")
FORMAT = 1
VERSIONS = ("stgt", "numpy", "scipy", "jax", "jaxlib")
SHAPES = {"versions": dict, "data": dict, "seeds": list, "scripts": list, "data_dir": str | None}
BATCH = re.compile(r"\d{2,}-[a-z0-9][a-z0-9-]*(\.\d+)?")  # of a batch's folder; it excludes paths elsewhere


@dataclass(frozen=True)
class Folder:
    """A study's folder, with the content of its run.json."""

    path: Path
    record: dict[str, Any]

    @staticmethod
    def create(path: Path, plan: Plan, *, force: bool, scripts: Sequence[Path] = (), data_dir: Path | None) -> Folder:
        """A new, empty folder; a ValueError if it would overwrite something without `force`."""
        if (path / RECORD).is_file():
            _make_room(path, force)
        output_folder(path, force)
        record = {
            "format": FORMAT,
            "kind": plan.kind,
            "name": (plan.spec and plan.spec.name) or path.resolve().name,
            "started": _now(),
            "versions": _versions(),
            "seeds": sorted({seed for batch in plan.batches for seed in batch.seeds}),
            "rule": asdict(plan.rule),
            "data": {} if plan.spec is None else _checksums(plan.spec),
            "scripts": [str(script.resolve()) for script in scripts],
            "data_dir": None if data_dir is None else str(data_dir.resolve()),
        }
        return Folder(path, record)

    def begin(self, plan: Plan) -> None:
        """Records the plan, and that it is running; call it only within `alone`."""
        settings = {entry["folder"]: entry["settings"] for entry in self.record.get("batches", ())}
        batches = [_entry(one) for one in plan.batches]
        batches += [_entry(one) | {"settings": settings.get(one.folder, [])} for one in plan.fresh]
        spec = None if plan.spec is None else plan.spec.model_dump(mode="json", exclude_none=True)
        (self.path / SPEC).unlink(missing_ok=True)  # it must never exist next to a record of another spec
        self._write(status="running", batches=batches, spec=spec)
        if plan.spec is not None:
            write_text(self.path / SPEC, spec_text(plan.spec, with_defaults=True))

    def choose(self, fresh: Sequence[Batch]) -> None:
        """Records the chosen settings; removes the states of settings that an earlier, shorter run chose."""
        batches = {entry["folder"]: entry for entry in self.record["batches"]}
        for batch in fresh:
            if batches[batch.folder]["settings"] != list(batch.settings):
                shutil.rmtree(self.batch(batch.folder), ignore_errors=True)
                batches[batch.folder] = _entry(batch)
        self._write(batches=list(batches.values()))

    @staticmethod
    def open(path: Path) -> Folder:
        """An existing folder; a ValueError if it is not a study or is damaged."""
        file, record, number = path / RECORD, {}, FORMAT
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            number = record["format"]
            whole = number == FORMAT and _is_whole(record)
        except OSError as error:
            raise ValueError(
                f"{path} is not a run ({RECORD} cannot be read: {error.strerror}): give a folder of `stgt run`, "
                "`stgt sweep` or `stgt compare`."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if number != FORMAT:
            raise ValueError(f"{file} has format {number}, not {FORMAT}: use the version of stgt that wrote it.")
        if not whole:
            raise ValueError(f"{file} is damaged: take another copy of the folder, or run it again into another one.")
        return Folder(path, record)

    @property
    def kind(self) -> str:
        return self.record["kind"]

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def methods(self) -> list[str]:
        """The names of the methods."""
        return list(dict.fromkeys(str(entry["method"]) for entry in self.record["batches"]))

    @property
    def finished(self) -> bool:
        return self.record["status"] == "finished"

    @property
    def spec(self) -> Spec | None:
        """The spec; None if `stgt.compare` made the run."""
        return None if self.record["spec"] is None else Spec.model_validate(self.record["spec"])

    def check_same(self, plan: Plan) -> None:
        """A ValueError unless the folder has this comparison of `stgt.compare`, or fewer rounds of it."""
        if self.record["spec"] is not None:
            again = f"`stgt {self.kind} --resume {self.path}`"
            raise InputError(
                "folder", self.path, f" holds a run of a spec: continue with {again}, or give another folder."
            )
        most = max(entry["rounds"] for entry in self.record["batches"])
        if plan.batches[0].rounds < most:
            raise InputError(
                "rounds", plan.batches[0].rounds, f": {self.path} has {most} already; give at least as many."
            )
        tried = {}
        for entry in self.record["batches"]:
            if not entry["fresh"]:
                tried.setdefault(entry["method"], []).extend(entry["settings"])
        methods = {name: [one for batch in of for one in batch.settings] for name, of in plan.methods.items()}
        now = {"seeds": sorted(plan.batches[0].seeds), "rule": asdict(plan.rule), "methods": methods}
        difference = first_difference(
            now, {**{name: self.record[name] for name in ("seeds", "rule")}, "methods": tried}
        )
        if difference is not None:
            raise InputError(
                "folder",
                self.path,
                f" holds another comparison: {difference}. Give the same arguments as at its start, or another folder.",
            )

    def nothing_yet(self) -> ValueError:
        """The error for a folder without measurements."""
        again = "call stgt.compare again" if self.record["spec"] is None else f"`stgt {self.kind} --resume {self.path}`"
        return ValueError(f"{self.path} holds no measurement yet: continue with {again}.")

    def longer_spec(self, sets: Sequence[str]) -> Spec:
        """The spec, with more rounds if `sets` has rounds=…; nothing else may change."""
        spec, file = self.spec, self.path / SPEC
        if spec is None:
            raise InputError("resume", self.path, " was run from Python: call stgt.compare(…, folder=…) again.")
        if file.exists() and _entries(file.read_text(encoding="utf-8")) != _entries(
            spec_text(spec, with_defaults=True)
        ):
            raise ValueError(
                f"{file} was edited, but a resumed run keeps its spec: undo the change, or remove the file, which is "
                "then written again. To add rounds, use set rounds=…; for another run, give another folder."
            )
        for entry in sets:
            key, _, value = entry.partition("=")
            if key.strip() != "rounds" or not value.strip().isdecimal():
                raise InputError(
                    "sets", entry, "a resumed run keeps its spec; only rounds=… may be set, to a larger number."
                )
            rounds = int(value)
            most = max(run.rounds for run in spec.runs)
            if rounds < most:
                raise InputError("sets", entry, f"the run already has {most} rounds; give more.")
            spec = spec.model_copy(
                update={"runs": tuple(run.model_copy(update={"rounds": rounds}) for run in spec.runs)}
            )
        return spec

    def batch(self, name: str) -> Path:
        """The folder of a batch."""
        return self.path / name

    def states(self) -> Iterator[tuple[dict[str, Any], list[Trace]]]:
        """The saved traces of each batch with its entry in run.json, without batches that have not begun."""
        for entry in self.record["batches"]:
            file = self.batch(entry["folder"]) / STATE
            if file.exists():
                yield entry, load(file)

    def runs(self) -> dict[str, list[Trace]]:
        """The saved traces of each method's settings, in their order."""
        found: dict[str, dict[int, Trace]] = {}
        for entry, traces in self.states():
            if not entry["fresh"]:
                found.setdefault(entry["method"], {}).update(zip(entry["places"], traces, strict=True))
        return {method: [of[place] for place in sorted(of)] for method, of in found.items()}

    def fresh(self) -> dict[str, Trace] | None:
        """Each method's chosen setting on fresh seeds; None if some are missing."""
        wanted = [entry for entry in self.record["batches"] if entry["fresh"]]
        found = {entry["method"]: traces[0] for entry, traces in self.states() if entry["fresh"]}
        rule = Rule(**self.record["rule"])

        def is_whole(trace: Trace, rounds: int) -> bool:
            return not trace.interrupted and (trace.rounds == rounds or (rule.stop and rule.settled([trace])))

        whole = all(entry["method"] in found and is_whole(found[entry["method"]], entry["rounds"]) for entry in wanted)
        return found if wanted and whole else None

    def _write(self, **changes: Any) -> None:
        """Writes run.json with these changes."""
        self.record.update(changes)
        write_text(self.path / RECORD, json.dumps(self.record, indent=1, ensure_ascii=False) + "\n")

    def end(self, finished: bool) -> None:
        """Records how the run ended."""
        self._write(status="finished" if finished else "interrupted", ended=_now())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other process can write into the folder; a ValueError if one is writing."""
        with (self.path / LOCK).open("a") as stream:
            if not _lock(stream):
                raise ValueError(
                    f"{self.path} is being written by another process: wait for it, or give another folder."
                )
            yield

    @property
    def state(self) -> str:
        """The status in one word: "killed" if the process of the run ended without recording how."""
        if self.record["status"] != "running":
            return self.record["status"]
        try:
            with (self.path / LOCK).open() as stream:  # read only, as the folder may be write-protected
                return "killed" if _lock(stream) else "running"
        except OSError:
            return "killed"


def list_folders(below: Path) -> list[Folder]:
    """The studies below a folder, newest first, without those that cannot be read."""
    found = []
    for file in below.glob(f"**/{RECORD}"):
        try:
            found.append(Folder.open(file.parent))
        except ValueError:
            continue
    return sorted(found, key=lambda one: one.record["started"], reverse=True)


def _entry(batch: Batch) -> dict[str, Any]:
    """The entry of a batch in run.json."""
    found = {name: getattr(batch, name) for name in ("folder", "run", "method", "rounds", "fresh")}
    return found | {"settings": list(batch.settings), "places": list(batch.places)}


def _is_whole(record: dict[str, Any]) -> bool:
    """Does the record have all entries that are used? False, or an error, if it does not."""
    Rule(**record["rule"])
    spec = None if record["spec"] is None and record["kind"] == "compare" else Spec.model_validate(record["spec"])
    texts = [record[name] for name in ("name", "status", "started")] + [entry["method"] for entry in record["batches"]]
    shapes = all(isinstance(record[name], kind) for name, kind in SHAPES.items()) and record["kind"] in KINDS
    return (
        shapes
        and all(isinstance(text, str) for text in texts)
        and all(
            BATCH.fullmatch(entry["folder"])
            and (spec is None or entry["run"] in range(len(spec.runs)))
            and isinstance(entry["rounds"], int)
            and isinstance(entry["settings"], list)
            and all(isinstance(place, int) for place in entry["places"])
            and isinstance(entry["fresh"], bool)
            for entry in record["batches"]
        )
    )


def _make_room(path: Path, force: bool) -> None:
    """Removes an older study if `force` allows it: first its batches, so that run.json lists what remains."""
    old = Folder.open(path)
    if not force:
        state = "finished" if old.finished else "unfinished"
        go_on = "" if old.finished else f", `stgt {old.kind} --resume {path}` to continue it"
        hint = f" holds a run that is {state}: give another folder{go_on}, or {{other}} for a new one."
        raise InputError("out", path, hint, other="force=True")
    with old.alone():
        for entry in old.record["batches"]:
            shutil.rmtree(old.batch(entry["folder"]), ignore_errors=True)
        for name in (*RESULTS, SPEC):
            (path / name).unlink(missing_ok=True)


def _entries(text: str) -> Any:
    """The entries of a spec file without comments and in any order; its text if it cannot be parsed."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text


def _lock(stream: Any) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, where the folder has no lock
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _checksums(spec: Spec) -> dict[str, str]:
    """SHA-256 of the user's files that the spec names."""
    texts = {
        value
        for run in spec.runs
        for table in (run.problem, run.topology)
        for value in table.arguments.values()
        if isinstance(value, str)
    }
    files = sorted(Path(word) for word in texts if len(word) < 4096 and "\0" not in word and Path(word).is_file())
    return {str(file): digest_of_file(file) for file in files}
