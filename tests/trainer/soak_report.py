"""What came of a soak: for each fault what the nodes have said of it, and whether all is at the end as promised."""

from collections import Counter
from pathlib import Path
from statistics import median

import torch
from elastic_node import SIZE, minimiser, quadratic

DISTANCE = 1e-9  # to the minimiser over the members; of a quadratic with exact gradients
SUM_C = 1e-9
LOSS = 1e-12  # relative, to the undisturbed run
MEMORY = (20.0, 0.05)  # MiB, or relative: a growth below either is none
FILES, THREADS = 10, 8  # more at the end than at the beginning: those of one group that is about to be taken down
NOTICED = 30.0  # seconds after a fault until which an event must name it
LIGHTHOUSE_MISSED = 6.0  # seconds: a node asks every two, and waits for three for an answer
QUIET = 3.0  # seconds after a fault in which no other begins, for it to count as alone

# kind: how it is injected, what is promised, seconds of pause at the others, beyond the fault's own
FAULTS = {
    "kill": ("kill −9", "the others pause ≤ 1 s", 1.0),
    "two killed": ("kill −9 of two at once", "the others pause ≤ 1 s", 1.0),
    "SIGTERM": ("SIGTERM", "leaves in order; no pause > 1 s", 1.0),
    "leave": ("`opt.leave()`", "leaves in order; no pause > 1 s", 1.0),
    "stop < 4 s": ("SIGSTOP, SIGCONT after 0.3 to 4 s", "pause ≤ that + 1 s", None),
    "stop > 4 s": ("SIGSTOP, SIGCONT after 4 to 8 s", "lost in ≤ 4 s, comes back", 4.0),
    "hang": ("the training thread sleeps for longer than the time-out", "pause ≤ time-out + 1 s, comes back", 16.0),
    "slow": ("0.02 to 0.3 s more a step", "waits for it, loses nobody", None),
    "disk": ("a file-size limit at one node's `save`", "ValueError at all, training goes on", 1.0),
    "NaN, skip": ("a gradient of NaN, `on_nonfinite='skip'`", "that node's round is undone", 1.0),
    "NaN, stop": ("a gradient of NaN, `on_nonfinite='stop'`", "it ends with its reason, the others pause ≤ 1 s", 1.0),
    "lighthouse": ("kill −9 of the lighthouse, a new one after 0.2 to 8 s", "training goes on", 1.0),
    "cut < 5 s": ("a host's cable out and in again", "pause ≤ that + 1 s", None),
    "cut > 5 s": ("a host's cable out for 5 to 9 s", "lost in ≤ 4 s, comes back", 4.0),
    "cut off lighthouse": ("the cable of the lighthouse's host", "pause ≤ that + 4 s", None),
    "too few": ("kill −9 of one of `min_nodes`", "waits, goes on when others come", None),
}
ENDS_IN = {"kill": "lost", "two killed": "lost", "SIGTERM": "left", "leave": "left", "NaN, stop": "left",
           "stop > 4 s": "lost", "hang": "lost", "cut > 5 s": "lost", "too few": "lost"}  # fmt: skip
HARMLESS = ("disk", "NaN, skip", "leave", "SIGTERM")  # they do not disturb what is measured of others


def judge(run, ends: dict, plain: dict | None, left: list[int]) -> dict:
    """Everything of a part, and what is not as promised."""
    problems = list(run.problems)
    problems += [f"process {number} is left over" for number in left]
    problems += ends_of(ends, plain) if ends else ["it has not come to its end"]
    found = held(run)
    problems += [words for one in found.values() for words in one.pop("problems")]
    problems += files_of(run.folder, run.temporary)
    for one in run.processes:
        for line in one.said.get("metrics", ()):
            if line["sum_c"] is not None and line["sum_c"] > SUM_C:
                problems.append(f"‖Σc‖ = {line['sum_c']:.1e} at {one.name} in round {line['round']}")
    faults = [look_up(run, fault) for fault in run.faults]
    problems += [words for fault in faults for words in fault["problems"]]
    return {
        "faults": faults,
        "events": events_of(run),
        "rounds": max((one.round for one in run.processes), default=0),
        "held": found,
        "ends": ends,
        "problems": problems,
    }


def events_of(run) -> list[dict]:
    """All that the nodes have told of changes of the members, by time."""
    found = [line["event"] | {"node": line["id"]} for one in run.processes for line in one.said.get("change", ())]
    return sorted(found, key=lambda event: event["time"])


# -- the end -----------------------------------------------------------------------------------------------------------


def loss(x) -> float:
    """Σ f_k(x) of the eight."""
    x = torch.as_tensor(x, dtype=torch.float64)
    return sum(float(x @ A @ x / 2 - b @ x) for A, b in map(quadratic, range(8)))


def ends_of(ends: dict, plain: dict | None) -> list[str]:
    """The models at the end, next to the minimiser and an undisturbed run's, if there was one."""
    found, goal = [], minimiser(range(8))
    if len(ends) < 8:
        found.append(f"only {', '.join(sorted(ends))} have come to the end")
    for name, end in ends.items():
        x, other = torch.tensor(end["x"], dtype=torch.float64), goal if plain is None else plain[name]["x"]
        assert len(x) == SIZE
        if (distance := float((x - goal).norm())) > DISTANCE:
            found.append(f"{name} ends {distance:.1e} from the minimiser")
        if len(end["members"]) != 8:
            found.append(f"{name} ends with {len(end['members'])} members")
        if end["metrics"].get("sum_c", 1.0) > SUM_C:
            found.append(f"{name} ends with ‖Σc‖ = {end['metrics'].get('sum_c')}")
        if abs(loss(x) - loss(other)) > LOSS * abs(loss(other)):
            found.append(f"{name} ends with the loss {loss(x)!r}, undisturbed {loss(other)!r}")
    return found


def held(run) -> dict:
    """Memory, files and threads of the nodes that lived through all of it: early and late, with eight members."""
    found = {}
    for one in run.processes:
        if not one.protected or len(one.samples) < 10:
            continue
        begin, end = one.samples[0]["time"], one.samples[-1]["time"]
        full = [sample for sample in one.samples if sample["members"] == 8] or one.samples
        early = [s for s in full if 0.1 <= (s["time"] - begin) / (end - begin) <= 0.4] or full[:5]
        late = [s for s in full if (s["time"] - begin) / (end - begin) >= 0.7] or full[-5:]
        numbers = {
            what: [median(s[what] for s in early), median(s[what] for s in late), max(s[what] for s in full)]
            for what in ("MiB", "files", "threads")
        }
        growth = {what: after - before for what, (before, after, _) in numbers.items()}
        problems = []
        if growth["MiB"] > max(MEMORY[0], MEMORY[1] * numbers["MiB"][0]):
            problems.append(f"{one.name} has grown by {growth['MiB']:.0f} MiB to {numbers['MiB'][1]:.0f} MiB")
        for what, limit in (("files", FILES), ("threads", THREADS)):
            if growth[what] > limit:
                problems.append(f"{one.name} has {numbers[what][1]:.0f} {what}, and had {numbers[what][0]:.0f} before")
        found[one.name] = numbers | {"problems": problems}
    return found


def files_of(folder: Path, temporary: Path) -> list[str]:
    """What is left on the disk besides two checkpoints."""
    found = [f"{path} is left over" for path in temporary.iterdir()]
    checkpoints = list((folder / "checkpoints").glob("*"))
    if len(checkpoints) > 3:
        found.append(f"{len(checkpoints)} checkpoints are kept: {', '.join(sorted(one.name for one in checkpoints))}")
    found += [f"{path} is left over" for one in checkpoints for path in one.glob(".*")]
    return found


# -- faults ------------------------------------------------------------------------------------------------------------


def look_up(run, fault) -> dict:
    """What the nodes have said of a fault."""
    for one in run.processes:  # a fault that was ordered begins when the node obeys
        for line in one.said.get("obeys", ()) if one.id in fault.victims else ():
            if fault.kind.lower().startswith(line["order"]) and 0 <= line["time"] - fault.time < NOTICED:
                fault.time = line["time"]
                break
    spared = [
        one for one in run.processes
        if one.id and one.id not in fault.victims and one.born < fault.time - 1
        and not any(one.id in other.victims and during(other, fault) for other in run.faults)
    ]  # fmt: skip
    pauses = [
        line["time"] - fault.time
        for one in spared
        for line in one.said.get("pause", ())
        if line["since"] < fault.time + 0.7 and line["time"] > fault.time
    ]
    alone = not any(other is not fault and during(other, fault) for other in run.faults if other.kind not in HARMLESS)
    seen = {"pause": max(pauses, default=0.0), "alone": alone}
    problems = []
    kind = ENDS_IN.get(fault.kind)
    if kind is not None:
        times = noticed(run, fault, kind)
        # Another fault may have come first: it was leaving, or had been lost, or the others had never met it.
        known = {*times, *noticed(run, fault, "lost"), *noticed(run, fault, "left"), *(() if alone else fault.victims)}
        missing = [who for who in fault.victims if who not in known]
        if missing:
            problems.append(f"no event names {', '.join(missing)}: {fault.kind} at {fault.time:.3f}")
        if times:
            seen["noticed"] = max(times.values())
    elif fault.kind == "disk":
        lines = [line for one in run.processes for line in one.said.get("unsaved", ()) if within(line, fault)]
        seen["nodes"] = len(lines)
        # The next save of that node fails at all, if it lives until then, and the others do not make it without it.
        saved = [line["time"] for one in run.processes if one.id in fault.victims for line in one.said.get("saved", ())]
        later = [when for when in saved if when > fault.time]
        failed = [line["time"] for one in run.processes for line in one.said.get("unsaved", ())]
        if alone and later and not any(fault.time < when <= min(later) for when in failed):
            problems.append(f"no node has said that it could not save: disk at {fault.time:.3f}")
    elif fault.kind == "NaN, skip":
        words = [words for one in run.processes for when, words in one.logged if 0 <= when - fault.time < NOTICED
                 and "undoes this round" in words and one.id in fault.victims]  # fmt: skip
        if not words and alone:
            problems.append(f"the node has not said that it undoes a round: NaN at {fault.time:.3f}")
    elif fault.kind == "lighthouse" and fault.seconds > LIGHTHOUSE_MISSED:
        words = [words for one in run.processes for when, words in one.logged if 0 <= when - fault.time < NOTICED
                 and "the lighthouse" in words]  # fmt: skip
        seen["nodes"] = len(words)
        if not words:
            problems.append(f"no node has said that the lighthouse is gone: at {fault.time:.3f}")
    return {
        "kind": fault.kind, "time": fault.time, "victims": fault.victims, "seconds": fault.seconds,
        "seen": seen | fault.seen, "problems": problems,
    }  # fmt: skip


def during(other, fault) -> bool:
    """Does another fault's time touch that of this one?"""
    return other.time < fault.time + fault.seconds + QUIET and fault.time < other.time + other.seconds + QUIET


def within(line: dict, fault) -> bool:
    return 0 <= line["time"] - fault.time < NOTICED


def noticed(run, fault, kind: str) -> dict[str, float]:
    """Seconds until an event names each victim as lost, or as one that has left."""
    found: dict[str, float] = {}
    for event in events_of(run):
        seconds = event["time"] - fault.time
        for who in event[kind] if 0 <= seconds < NOTICED + fault.seconds else ():
            if (name := who.partition(" ")[0]) in fault.victims:
                found.setdefault(name, seconds)
    return found


# -- the table ---------------------------------------------------------------------------------------------------------


def table(report: dict) -> str:
    """In Markdown: a row for each kind of fault."""
    rows = [
        f"{report['seconds'] / 60:g} minutes of faults, seed {report['seed']}: "
        f"{' and '.join(map(str, report['rounds']))} rounds, {len(report['faults'])} faults, "
        f"{len(report['problems'])} things not as promised.",
        "",
        "| fault | how injected | promised | times | of these alone | seconds of pause: median | max, alone | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    counts = Counter(fault["kind"] for fault in report["faults"])
    for kind in (kind for kind in FAULTS if counts[kind]):
        how, promised, _ = FAULTS[kind]
        pauses = [
            (fault["seen"]["pause"], fault["seen"]["alone"]) for fault in report["faults"] if fault["kind"] == kind
        ]
        alone = [seconds for seconds, one in pauses if one]
        numbers = [shown(median(alone)) if alone else "", shown(max(alone)) if alone else "", shown(max(pauses)[0])]
        rows.append(f"| {kind} | {how} | {promised} | {counts[kind]} | {len(alone)} | {' | '.join(numbers)} |")
    rows += ["", "| node | early: MiB, files, threads | late |", "|---|---|---|"]
    for part in report["held"]:
        for name, one in part.items():
            early, late = (", ".join(f"{one[what][i]:.0f}" for what in ("MiB", "files", "threads")) for i in (0, 1))
            rows.append(f"| {name} | {early} | {late} |")
    return "\n".join(rows)


def shown(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 0.3 else "< 0.3"
