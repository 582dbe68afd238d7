"""The results of a study: as a comparison, as files in its folder, and as a section of a report."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.files import write_table
from stgt._internal.progress import Progress, split_progress
from stgt.simulator import Rule, Trace
from stgt.study.comparison import Comparison
from stgt.study.report import Network, Study, write_page
from stgt.study.run_folder import Folder
from stgt.study.spec.runs import BuiltRun, build_run

if TYPE_CHECKING:
    from stgt.theory import Advice

PATIENCE = 40  # seconds for the prediction of the theory for a method
SOON = 3.0  # if a prediction takes longer, the largest stepsize is skipped: its search needs many


def load_comparison(folder: Folder) -> Comparison:
    """The measurements so far, by method; a ValueError if there are none."""
    runs = folder.runs()
    if not runs:
        raise folder.nothing_yet()
    return Comparison.of(Rule(**folder.record["rule"]), runs, folder.fresh())


def write_results(folder: Folder, found: Comparison, progress: Progress | None = None) -> list[Path]:
    """Marks the study as finished and writes the outputs of its spec: table, figure, page."""
    folder.end(finished=True)
    outputs, written = ("summary",) if folder.spec is None else folder.spec.outputs, list[Path]()
    if "summary" in outputs:
        written.append(write_table(folder.path / "summary.csv", found.rows))
    if "curves" in outputs:
        written += found.curves(folder.path / "curves", title=folder.name)
    if "report" in outputs:
        written.append(write_page([load_study(folder.path, progress=progress)], folder.path / "report.html"))
    return written


def progress_of(folder: Folder) -> str:
    """The progress as text."""
    if folder.finished:
        return "finished"
    made = {entry["folder"]: traces[0].rounds for entry, traces in folder.states()}
    done = sum(min(made.get(entry["folder"], 0), entry["rounds"]) for entry in folder.record["batches"])
    whole = sum(entry["rounds"] for entry in folder.record["batches"])
    return f"{folder.state} after {done:,} of {whole:,} rounds of {len(folder.record['batches'])} batches"


def load_study(path: Path, theory: bool = True, progress: Progress | None = None) -> Study:
    """A folder as a section of a report; with `theory`, also the prediction for the best run of each method."""
    folder = Folder.open(path)
    found = load_comparison(folder)
    built = {name: _built(folder, name) for name in found.runs}
    ticks = split_progress(progress, [1.0] * len(built))
    advice = {
        name: _advice(found.best[name], one, tick) if theory else "it was not requested"
        for (name, one), tick in zip(built.items(), ticks, strict=True)
    }
    record, network = folder.record, None if folder.spec is None else folder.spec.network
    facts = {
        "folder": str(folder.path),
        "begun": record["started"],
        "ended": str(record.get("ended", "")),
        "seeds": ", ".join(map(str, record["seeds"])),
        **{name: str(version) for name, version in record["versions"].items()},
        **{f"SHA-256 of {name}": str(digest) for name, digest in record["data"].items()},
    }
    return Study(
        found,
        name=folder.name,
        kind=folder.kind,
        status=progress_of(folder),
        spec="" if folder.spec is None else (path / "spec.toml").read_text(encoding="utf-8"),
        facts={name: words for name, words in facts.items() if words},
        advice=advice,
        topologies={name: one.topology for name, one in built.items() if isinstance(one, BuiltRun)},
        network=Network() if network is None else Network(**network.model_dump(exclude_none=True)),
    )


def _built(folder: Folder, method: str) -> BuiltRun | str:
    """The objects of a method's run, or the reason why they cannot be built, for example missing data."""
    if folder.spec is None:
        return "it was run from Python, so the folder does not contain its problem"
    number = next(entry["run"] for entry in folder.record["batches"] if entry["method"] == method)
    where = folder.record["data_dir"]
    try:
        return build_run(folder.spec.runs[number], None if where is None else Path(where))
    except ValueError as error:
        return str(error)


def _advice(trace: Trace, built: Any, progress: Progress) -> Advice | str:
    """The theory's prediction, or the reason for no prediction. A page waits at most PATIENCE seconds for it.

    It is computed in its own thread. If it takes longer, its result is not used; the thread ends with the process, or
    earlier when it next reports its progress.
    """
    if isinstance(built, str):
        return built
    from stgt.theory import check  # the import takes as long as a short run

    parts = (trace.algorithm, built.problem, built.topology)
    found: list[Advice | BaseException] = []
    given_up = threading.Event()

    def tick(done: float, total: float) -> None:
        if given_up.is_set():
            raise TimeoutError
        progress(done, total)

    def compute() -> None:
        began = time.monotonic()
        try:
            found.append(check(*parts, oracle=built.oracle, stepsizes=False))
            if time.monotonic() - began < SOON:
                found.append(check(*parts, oracle=built.oracle, progress=tick))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    answer = found[-1] if found else None  # read it before the computation is cancelled, which would add a TimeoutError
    given_up.set()
    progress(1, 1)
    if answer is None:
        return f"no prediction within {PATIENCE} s; `stgt check` computes without a limit"
    if isinstance(answer, ValueError):
        return str(answer)
    if isinstance(answer, BaseException):
        raise answer
    return answer
