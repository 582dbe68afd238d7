"""What a study found: as a comparison, as files in its folder, and as a section of a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stgt.comparison import Comparison
from stgt.engines import Rule, Trace
from stgt.engines.choice import noted
from stgt.experiments.spec import Made, make
from stgt.experiments.study.folder import RESULTS, Folder
from stgt.files import write_table
from stgt.progress import Progress, split_progress
from stgt.report import Network, Study

if TYPE_CHECKING:
    from stgt.theory import Advice


def load_comparison(folder: Folder) -> Comparison:
    """All that was measured so far, by method; a ValueError if that is nothing."""
    rule, runs = Rule(**folder.record["rule"]), dict[str, list[Trace]]()
    for entry, traces in folder.states():
        runs.setdefault(entry["method"], []).extend(traces)
    if not runs:
        raise ValueError(
            f"{folder.path} holds no measurement yet: go on with `stgt {folder.kind} --resume {folder.path}`."
        )
    best = {label: noted(rule, label, rule.choose(traces)) for label, traces in runs.items()}
    return Comparison(rule, runs, best)


def write_results(folder: Folder, found: Comparison) -> list[Path]:
    """summary.csv, a row for every run, and the picture of each method's best."""
    table, picture = folder.path / RESULTS[0], folder.path / Path(RESULTS[1]).stem
    return [write_table(table, found.rows), *found.curves(picture, title=folder.name)]


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
        best={name: found.best[name] for name in found.ranking},
        rule=found.rule if folder.kind == "compare" else None,
        advice=advice,
        topologies={name: one.topology for name, one in made.items() if isinstance(one, Made)},
        network=Network(**record.get("network", {})),
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
    if isinstance(made, str):
        return made
    from stgt.theory import check  # it takes as long to load as a short run

    try:
        return check(trace.algorithm, made.problem, made.topology, oracle=made.oracle, progress=progress)
    except ValueError as error:
        return str(error)
