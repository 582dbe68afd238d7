"""Spec files that are wrong in one way each, drawn at random from kinds of mistakes: each with what must be named."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from mutated import ONE, SEVERAL, TABLES, WRONG


@dataclass(frozen=True)
class Mutation:
    """A wrong spec: what the file holds, and what the sentence must name, any of them."""

    kind: str
    content: bytes
    names: tuple[str, ...]


def drawn(count: int, seed: int = 0) -> list[Mutation]:
    """`count` mutations, no two with one content; all kinds in turn."""
    rng, found = random.Random(seed), {}
    kinds = list(KINDS)
    turn = 0
    while len(found) < count:
        kind = kinds[turn % len(kinds)]
        turn += 1
        text, names = KINDS[kind](rng)
        content = text if isinstance(text, bytes) else text.encode()
        found.setdefault(content, Mutation(kind, content, names))
    return list(found.values())


def _set(text: str, entry: str, value: str) -> str:
    """The text with another value for an entry `table.key` or `key`, which it may or may not have."""
    table, _, key = entry.rpartition(".")
    lines, at = text.splitlines(), ""
    kept, place = [], 0
    for line in lines:
        if line.startswith("["):
            at = line.strip("[]")
        if at == table and line.split("=")[0].strip() == key:
            continue
        kept.append(line)
        if line == f"[{table}]":
            place = len(kept)
    if table and f"[{table}]" not in kept:
        kept += [f"[{table}]"]
        place = len(kept)
    return "\n".join([*kept[:place], f"{key} = {value}", *kept[place:]]) + "\n"


def _word(rng: random.Random, letters: str = string.ascii_lowercase) -> str:
    return "".join(rng.choices(letters, k=rng.randint(5, 12)))


def wrong_type(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    entry = rng.choice(list(WRONG))
    return _set(ONE, entry, rng.choice(WRONG[entry])), (entry, "partition lists") if "partition" in entry else (entry,)


def out_of_range(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    k, tiny = rng.randint(1, 10**6), rng.random()
    choices = {
        "rounds": [f"-{k}", str(10**9 + k)],
        "seeds": ["0", f"-{k}", str(10**6 + k), "[]", f"[-{k}]", f"[{2**32 + k}]", f"[{k}, {k}]"],
        "every": ["0", f"-{k}"],
        "target": ["0", f"-{tiny}", "-0.0"],
        "algorithm.gamma": ["0", f"-{tiny}"],
        "algorithm.tau": ["0", f"-{k}"],
        "algorithm.beta": ["0", f"{1 + tiny}", f"-{tiny}"],
        "problem.n": ["0", f"-{k}", str(24 + k)],
        "problem.l2": [f"-{tiny}"],
        "problem.seed": ["-1", str(2**32 + k)],
        "oracle.batch": ["0", f"-{k}"],
        "network.bandwidth": ["0", f"-{k}"],
        "network.gradient": [f"-{tiny}"],
        "grid.gamma": ["[]", f"[-{tiny}]", "[0.1, 0]"],
    }
    entry = rng.choice(list(choices))
    return _set(ONE, entry, rng.choice(choices[entry])), (entry,)


def huge(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    digits = "".join(rng.choices("123456789", k=rng.choice([20, 30, 400, 4000])))
    entry = rng.choice([*WRONG, "algorithm.gamma"])
    return _set(ONE, entry, rng.choice(["", "-"]) + digits), (entry,)


def thousands_of_digits(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    return _set(ONE, "rounds", "7" * rng.randint(4400, 9000)), ("spec.toml",)


def not_finite(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    entry = rng.choice(["target", "algorithm.gamma", "problem.l2", "network.latency", "algorithm.beta", "rounds"])
    return _set(ONE, entry, rng.choice(["nan", "inf", "-inf", "+nan"])), (entry,)


def misspelt(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """A key without one of its letters, or with one twice."""
    entry = rng.choice(["rounds", "target", "metrics", "algorithm.gamma", "problem.partition", "oracle.batch"])
    table, _, key = entry.rpartition(".")
    at = rng.randrange(len(key))
    other = key[:at] + rng.choice(["", 2 * key[at], rng.choice("qxz")]) + key[at + 1 :]
    other = other if other != key else f"{key}s"
    wrong = f"{table}.{other}" if table else other
    return _set(ONE, wrong, "1"), (wrong,)


def unknown_key(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    table, key = rng.choice(["", *TABLES]), f"x{_word(rng)}"
    wrong = f"{table}.{key}" if table else key
    return _set(ONE, wrong, rng.choice(["1", "'a'", "[]", "{}"])), (wrong,)


def unicode_key(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    table = rng.choice(["", *TABLES])
    key = _word(rng, "γτβäöü數学🦉\u200b\u202e")
    wrong = _set(ONE, f"{table}.#" if table else "#", "1").replace("# = 1", f'"{key}" = 1')
    return wrong, (repr(key),)


def strange_key(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Newlines, quotes, NUL and dots in a key: still one line."""
    key = rng.choice(["\\n", "\\u0000", "\\t", '\\"', "\\r\\n", "\\u2028"])
    word = _word(rng)
    return f'"{word}{key}x" = 1\n{ONE}', (word,)


def unknown_name(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    entries = ["algorithm.name", "problem.name", "topology.name", "oracle.name", "engine", "dtype", "x0", "by", "cost"]
    entry = rng.choice(entries)
    word = rng.choice(
        [_word(rng), _word(rng, "γτäö🦉"), "", " STGT", "stgt.algorithms.STGT", "../../etc/passwd", "A" * 5000]
    )
    return _set(ONE, entry, f'"{word}"'), (entry,)


def unknown_metric(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    return _set(ONE, "metrics", f'["loss", "{_word(rng)}"]'), ("metrics",)


def nothing(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    return rng.choice(["\n", " ", "\t", "# nothing", "\ufeff"]) * rng.randint(0, 20), ("spec.toml",)


def not_text(rng: random.Random) -> tuple[bytes, tuple[str, ...]]:
    return ONE.encode() + rng.randbytes(8) + b"\xff\xfe\x00", ("spec.toml",)


def utf16(rng: random.Random) -> tuple[bytes, tuple[str, ...]]:
    return f"# {_word(rng)}\n{ONE}".encode(rng.choice(["utf-16", "utf-32"])), ("spec.toml",)


def control_characters(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    at = rng.randrange(len(ONE))
    return ONE[:at] + rng.choice(["\x00", "\x07", "\x1b", "\x7f"]) + ONE[at:], ("spec.toml",)


def deep_list(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    entry, depth = (
        rng.choice(["rounds", "metrics", "algorithm.gamma", "problem.noise", "topology.edges"]),
        rng.randint(25, 90),
    )
    return _set(ONE, entry, "[" * depth + "]" * depth), (entry,)


def deep_table(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    table, depth = rng.choice(["algorithm", "problem", "topology", "oracle"]), rng.randint(25, 90)
    return f"{ONE}[{table}{'.a' * depth}]\nx = 1\n", (table,)


def bottomless(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    depth = rng.randint(3000, 9000)
    return rng.choice([_set(ONE, "rounds", "[" * depth + "]" * depth), f"a = {'{a = ' * depth}1{'}' * depth}\n"]), (
        "spec.toml",
    )


def truncated(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Cut off behind an equals sign or within quotes or brackets: never TOML."""
    places = [at + 1 for at, letter in enumerate(ONE) if letter in "=["]
    places += [at + 2 for at in range(len(ONE) - 3) if ONE[at : at + 2] == ' "']
    return ONE[: rng.choice(places)], ("spec.toml",)


def not_toml(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    wrong = [
        "rounds == 9",
        "rounds = ",
        "= 9",
        "rounds : 9",
        "[algorithm",
        "rounds = 09",
        "rounds = 1__0",
        "a b = 1",
        "{",
    ]
    lines = ONE.splitlines()
    lines.insert(rng.randint(0, len(lines)), rng.choice([*wrong, f"{_word(rng)}"]))
    return "\n".join(lines), ("spec.toml",)


def twice(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    line = rng.choice([one for one in ONE.splitlines() if "=" in one])
    return ONE.replace(line, f"{line}\n{line}", 1), ("spec.toml",)


def wrong_kind_of_table(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    table = rng.choice(["algorithm", "problem", "topology", "oracle", "network"])
    parts = ONE.split(f"[{table}]\n")
    rest = parts[1].split("\n[", 1)
    without = parts[0] + (f"[{rest[1]}" if len(rest) > 1 else "")
    value = rng.choice(["3", "'STGT'", "true", "[]", "[{name = 'STGT'}]", "1979-05-27", f"'{_word(rng)}'"])
    return f"{table} = {value}\n{without}", (table,)


def left_out(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    table = rng.choice(["algorithm", "problem", "topology"])
    parts = ONE.split(f"[{table}]\n")
    rest = parts[1].split("\n[", 1)
    whole = f"# {_word(rng)}\n" + parts[0] + (f"[{rest[1]}" if len(rest) > 1 else "")
    nameless = ONE.replace(f"[{table}]\nname =", f"[{table}]\nx{_word(rng)} =")
    return rng.choice([(whole, (table,)), (nameless, (f"{table}.name",))])


def wrong_runs(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    value = rng.choice(["3", "'all'", "[]", "[1]", "{}", "{name = 'STGT'}", "[[]]", f"'{_word(rng)}'", "[{}, 3]"])
    return f"runs = {value}\n{ONE}", ("runs",)


def wrong_in_a_run(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    k, word = rng.randint(1, 999), _word(rng)
    lines = {
        f"rounds = -{k}": "runs.1.rounds",
        f"x{word} = {k}": f"runs.1.x{word}",
        f"algorithm.tau = -{k}": "runs.1.algorithm.tau",
        f"algorithm.x{word} = 1": f"runs.1.algorithm.x{word}",
        f"topology = {{name = 'x{word}'}}": "runs.1.topology.name",
        f"problem.n = -{k}": "runs.1.problem.n",
        f"oracle = {{name = 'Minibatch', batch = {k}}}": "runs.1.oracle",
        f"grid.gamma = [-{k}]": "runs.1.grid.gamma",
        f"grid.x{word} = [1]": f"grid.x{word}",
        f"metrics = ['tracking']  # {word}": "metrics",
        f"problem.n = {5 + k}\ntopology = {{name = 'from_matrix', W = [[1.0]]}}": "runs.1.topology",
    }
    line = rng.choice(list(lines))
    text = SEVERAL.replace('algorithm = {name = "DPSGD"}', 'algorithm.name = "DPSGD"')
    return text + line + "\n", (lines[line],)


def wrong_for_all_runs(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    k, word = rng.randint(1, 999), _word(rng)
    entry, value = rng.choice(
        [("rounds", f"-{k}"), ("problem.n", f"-{k}"), ("algorithm.tau", "0"), ("grid.gamma", f"[-{k}]"),
         (f"grid.x{word}", "[1]"), (f"x{word}", "1"), ("topology.name", f"'x{word}'"), ("cost", "'floats'")]
    )  # fmt: skip
    return f"# {word}\n" + _set(SEVERAL, entry, value), (entry,)


def wrong_path(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    word = _word(rng)
    data = [
        f"{word}.csv",
        f"{word}/{word}.npz",
        "folder.csv",
        f"own.{word}",
        word,
        "graph.toml",
        f"{word}.bz2",
        "own.csv/a.csv",
    ]
    edges = [f"{word}.csv", "folder.csv", word, "", "own.csv", "a\\u0000.csv"]
    entry = rng.choice(["problem.data", "topology.edges"])
    path = rng.choice(data if entry == "problem.data" else edges)
    text = _set(ONE, entry, f'"{path}"')
    if entry == "problem.data" and not path.endswith(".csv"):
        text = text.replace('label = "ill"\n', "")
    return f"# {word}\n{text}", (entry,)


def wrong_file(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    data = ["hole.csv", "text.csv", "short.csv", "nan.csv", "three.csv", "empty.csv", "broken.npz", "broken.svm"]
    edges = ["loop.csv", "apart.csv", "far.csv", "words.csv", "empty.csv"]
    entry = rng.choice(["problem.data", "topology.edges"])
    path = rng.choice(data if entry == "problem.data" else edges)
    text = _set(ONE, entry, f'"{path}"')
    if path.startswith("broken"):
        text = text.replace('label = "ill"\n', "")
    return f"# {_word(rng)}\n{text}", (entry, "topology")


def wrong_column(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    entry = rng.choice(["problem.label", "problem.node"])
    value = rng.choice(
        [f"'{_word(rng)}'", str(rng.randint(4, 99)), f"-{rng.randint(1, 9)}", "true", "0.5", "[0]", "{a = 1}"]
    )
    text = _set(ONE, entry, value)
    return (text.replace('partition = "iid"\n', "") if entry == "problem.node" else text), (entry,)


def wrong_schedule(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    k, word = rng.randint(1, 999), _word(rng)
    tables = {
        f"{{schedule = '{word}', start = 0.1}}": "algorithm.gamma.schedule",
        "{schedule = 3}": "algorithm.gamma.schedule",
        f"{{schedule = 'cosine', start = 0.{k}}}": "algorithm.gamma.rounds",
        f"{{schedule = 'cosine', start = -{k}, rounds = 9}}": "algorithm.gamma.start",
        f"{{schedule = 'step', start = 0.1, every = 0, factor = 0.{k}}}": "algorithm.gamma.every",
        f"{{schedule = 'inverse', start = 0.1, x{word} = 1}}": f"algorithm.gamma.x{word}",
        f"{{schedule = 'inverse', start = '{word}'}}": "algorithm.gamma.start",
    }
    table = rng.choice(list(tables))
    return _set(ONE, "algorithm.gamma", table), (tables[table],)


def does_not_fit(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    word = f"# {_word(rng)}\n"
    return rng.choice(
        [
            (word + ONE.replace("gamma = 0.1\n", ""), ("algorithm.gamma",)),
            (word + _set(ONE, "problem.n", str(rng.choice([2, 3]))), ("topology.edges",)),
            (word + _set(ONE, "problem.n", str(rng.randint(5, 20))), ("topology",)),
            (word + _set(ONE, "metrics", "['tracking']").replace('"STGT"', '"DPSGD"'), ("metrics",)),
            (word + _set(_set(ONE, "problem.l2", "0"), "x0", "'optimum'").replace('by = "residual"\n', "").replace(
                '"residual", ', ""), ("x0",)),
            (word + _set(_set(ONE, "problem.l2", "0"), "metrics", "['loss']"), ("by",)),
            (word + _set(ONE, "algorithm.name", "'GTSAGA'").replace("tau = 2\n", ""), ("oracle",)),
            (word + _set(ONE, "algorithm.name", "'DSGT'"), ("algorithm.tau", "algorithm")),
            (word + _set(ONE, "topology.name", "'from_networkx'"), ("topology.name",)),
            (word + _set(ONE, "oracle.name", "'ProblemNoise'").replace("batch = 2", "rank = 2"), ("oracle",)),
            (word + _set(ONE, "problem.rows", "4"), ("problem.rows",)),
            (word + _set(ONE, "topology.weights", f"'{_word(rng)}'"), ("topology.weights",)),
        ]
    )  # fmt: skip


KINDS: dict[str, Callable[[random.Random], tuple[str | bytes, tuple[str, ...]]]] = {
    function.__name__: function
    for function in (
        wrong_type, out_of_range, huge, thousands_of_digits, not_finite, misspelt, unknown_key, unicode_key,
        strange_key, unknown_name, unknown_metric, nothing, not_text, utf16, control_characters, deep_list, deep_table,
        bottomless, truncated, not_toml, twice, wrong_kind_of_table, left_out, wrong_runs, wrong_in_a_run,
        wrong_for_all_runs, wrong_path, wrong_file, wrong_column, wrong_schedule, does_not_fit,
    )
}  # fmt: skip
