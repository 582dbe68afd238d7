"""What a study found: as a comparison, as files in its folder, and as a section of a report."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt._internal.files import write_table
from stgt._internal.progress import Progress, split_progress
from stgt.simulator import Rule, Trace
from stgt.study.comparison import Comparison
from stgt.study.report import Network, Study, write_page
from stgt.study.run_folder import Folder
from stgt.study.spec.runs import Made, make

if TYPE_CHECKING:
    from stgt.theory import Advice

PATIENCE = 40  # seconds for what the theory says of a method
SOON = 3.0  # seconds after which the largest stepsize, a search of many such answers, is not looked for


def load_comparison(folder: Folder) -> Comparison:
    """All that was measured so far, by method; a ValueError if that is nothing."""
    runs = folder.runs()
    if not runs:
        raise ValueError(
            f"{folder.path} holds no measurement yet: go on with `stgt {folder.kind} --resume {folder.path}`."
        )
    return Comparison.of(Rule(**folder.record["rule"]), runs, folder.fresh())


def write_results(folder: Folder, found: Comparison, progress: Progress | None = None) -> list[Path]:
    """Says that the study is finished, and writes what its spec asks for: a table, a picture, a page."""
    folder.end(finished=True)
    outputs, written = folder.spec.outputs, list[Path]()
    if "summary" in outputs:
        written.append(write_table(folder.path / "summary.csv", found.rows))
    if "curves" in outputs:
        written += found.curves(folder.path / "curves", title=folder.name)
    if "report" in outputs:
        written.append(write_page([load_study(folder.path, progress=progress)], folder.path / "report.html"))
    return written


def progress_of(folder: Folder) -> str:
    """How far it is, in words."""
    if folder.finished:
        return "finished"
    made = {entry["folder"]: traces[0].rounds for entry, traces in folder.states()}
    done = sum(min(made.get(entry["folder"], 0), entry["rounds"]) for entry in folder.record["batches"])
    whole = sum(entry["rounds"] for entry in folder.record["batches"])
    return f"{folder.state} after {done:,} of {whole:,} rounds of {len(folder.record['batches'])} batches"


def load_study(path: Path, theory: bool = True, progress: Progress | None = None) -> Study:
    """A folder as a report shows it; with `theory`, what it predicts of each method at its best."""
    folder = Folder.open(path)
    found = load_comparison(folder)
    made = {name: _made(folder, name) for name in found.runs}
    ticks = split_progress(progress, [1.0] * len(made))
    advice = {
        name: _advice(found.best[name], one, tick) if theory else "it was not asked"
        for (name, one), tick in zip(made.items(), ticks, strict=True)
    }
    record = folder.record
    facts = {
        "folder": str(folder.path),
        "begun": str(record.get("started", "")),
        "ended": str(record.get("ended", "")),
        "seeds": ", ".join(map(str, record.get("seeds", ()))),
        **{name: str(version) for name, version in record.get("versions", {}).items()},
        **{f"SHA-256 of {name}": str(digest) for name, digest in record.get("data", {}).items()},
    }
    return Study(
        name=folder.name,
        kind=folder.kind,
        status=progress_of(folder),
        spec=(path / "spec.toml").read_text(encoding="utf-8"),
        facts={name: words for name, words in facts.items() if words},
        runs=found.runs,
        best={name: found.best[name] for name in found.rule.order(found.best)},
        rule=found.rule if folder.kind == "compare" else None,
        advice=advice,
        topologies={name: one.topology for name, one in made.items() if isinstance(one, Made)},
        network=Network(**record.get("network", {})),
        chosen=found.chosen,
        choice=found.choice if folder.kind == "compare" else "",
    )


def _made(folder: Folder, method: str) -> Made | str:
    """The objects of a method's run, or why they cannot be made, as its data may be gone."""
    number = next(entry["run"] for entry in folder.record["batches"] if entry["method"] == method)
    where = folder.record.get("data_dir")
    try:
        return make(folder.spec.runs[number], None if where is None else Path(where))
    except ValueError as error:
        return str(error)


def _advice(trace: Trace, made: Any, progress: Progress) -> Advice | str:
    """What the theory says, as far as it says it soon: a page is not to wait for minutes."""
    if isinstance(made, str):
        return made
    from stgt.theory import check  # it takes as long to load as a short run

    parts = (trace.algorithm, made.problem, made.topology)
    found: Advice | str = f"no answer within {PATIENCE} s: `stgt check` takes its time"
    began = time.monotonic()
    try:
        with _at_most(PATIENCE):
            found = check(*parts, oracle=made.oracle, stepsizes=False)
            if time.monotonic() - began < SOON:
                found = check(*parts, oracle=made.oracle, progress=progress)
    except _TooLongError:
        pass
    except ValueError as error:
        found = str(error)
    progress(1, 1)
    return found


class _TooLongError(Exception):
    """Patience is at its end."""


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raises _TooLongError after so many seconds, where there are alarms and this is the main thread."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # and again, where a callback swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
