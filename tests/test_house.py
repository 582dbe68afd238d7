"""The rules of the house: data flow one way, importing is cheap, and old names stay away."""

import ast
import re
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

from exception_texts import tested as text_tests
from vocabulary import defined, old_names, words

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stgt"
# Left to right: a part may import itself and what stands before it.
ORDER = [
    "_internal",
    "algorithms",
    "topology",
    "problems",
    "oracles",
    "simulator",
    "theory",
    "study",
    "torch",
    "flower",
    "testing",
    "cli",
]


def modules(source: str, package: str) -> set[str]:
    """The modules that a source file in `package` imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"stgt.{alias.name}" for alias in node.names} if module == "stgt" else {module}
    return found


def imports(path: Path) -> set[str]:
    return modules(path.read_text(), ".".join(path.relative_to(SOURCE.parent).parent.parts))


def outside(part: str, names: set[str]) -> list[str]:
    """Those of the imported modules that this part may not import; `stgt` itself is made of nearly all parts."""
    allowed = ORDER[: ORDER.index(part) + 1]
    own = [name.split(".") for name in sorted(names) if name.split(".")[0] == "stgt"]
    return [".".join(steps) for steps in own if len(steps) == 1 or steps[1] not in allowed]


def test_every_way_to_import_is_seen():
    source = "import stgt\nfrom stgt import theory\ndef f():\n    from ..study import draw\n    from . import job\n"
    assert modules(source, "stgt.simulator") == {"stgt", "stgt.theory", "stgt.study", "stgt.simulator"}
    assert outside("simulator", modules(source, "stgt.simulator")) == ["stgt", "stgt.study", "stgt.theory"]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_on_the_left_imports_anything_on_its_right(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert outside(part, imports(path)) == []
    assert not any(name.split(".")[0] == "reproductions" for name in imports(path))


def test_the_order_is_complete_and_written_down():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert parts == {"__init__", *ORDER}
    (written,) = re.findall(r"(?:^    .*→.*\n)+(?:^    .*\n)*", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    assert [name.strip() for name in written.split("→")] == ORDER


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").glob("*.py")), ids=lambda path: path.name)
def test_algorithms_import_no_array_library(path):
    allowed = set(sys.stdlib_module_names) | {
        f"stgt._internal.{name}" for name in ("checks", "hyper", "registry", "schedules")
    }
    for name in imports(path):
        assert name in allowed or name.split(".")[0] in allowed or name.startswith("stgt.algorithms"), name


@pytest.mark.parametrize("path", sorted((SOURCE / "topology").rglob("*.py")), ids=lambda path: path.name)
def test_topologies_load_numpy_and_nothing_else(path):
    allowed = set(sys.stdlib_module_names) | {"numpy", "stgt"}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {name.split(".")[0] for name in names} <= allowed, names


HEAVY = ("jax", "torch", "flwr", "matplotlib", "networkx", "plotly", "pydantic", "scipy.optimize", "sklearn")


HELP = "from stgt.cli import app; app(['--help'], standalone_mode=False)"


@pytest.mark.parametrize("code", ["import stgt", "import stgt.cli", HELP])
def test_starting_loads_no_heavy_library(code):
    code = f"import sys; {code}; print(sorted(set({HEAVY}) & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_experiments_load_neither_torch_nor_flower():
    code = "import sys, stgt.cli, stgt.study; print(sorted({'torch', 'flwr', 'jax'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_every_algorithm_is_exported():
    import stgt
    from stgt._internal.registry import ALGORITHMS

    ours = {name: kind for name, kind in ALGORITHMS.items() if kind.__module__.startswith("stgt.")}
    assert len(ours) == 30
    for name, kind in ours.items():
        assert getattr(stgt, name) is kind
        assert name in stgt.__all__


def test_no_name_of_the_old_vocabulary_is_defined():
    assert old_names() == []


def test_every_kind_of_name_is_seen_and_the_words_are_in_order():
    source = (
        "class A:\n    b: int = 0\n    def c(self, d, *e):\n        f = self.g = 1\nfor h in ():\n    h.seen = h.read\n"
    )
    assert {name for name, _ in defined(source)} == {"A", "b", "c", "self", "d", "e", "f", "g", "h", "seen"}
    old = [name for name, _, _ in words()]
    assert len(old) == len(set(old))


@pytest.mark.parametrize("path", sorted((SOURCE / "torch").glob("*.py")), ids=lambda path: path.name)
def test_parts_of_the_trainer_take_what_they_need_and_not_the_optimiser(path):
    if path.name in ("__init__.py", "optimizer.py"):
        return
    assert not [name for name in imports(path) if name in ("stgt.torch", "stgt.torch.optimizer")]
    assert not re.findall(r"\bopt\._\w+", path.read_text())


@pytest.mark.parametrize(
    "path", sorted([*SOURCE.rglob("*.py"), *(ROOT / "reproductions").rglob("*.py")]), ids=lambda path: str(path)[-40:]
)
def test_no_code_reads_the_text_of_an_exception(path):
    assert text_tests(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "if 'a' in str(error): pass",
        "if str(error) == 'a': pass",
        "str(error).startswith('a')",
        "error.args[0].split(':')",
        "error.hint.partition(' ')",
        "x = error.args[0]",
        "words = str(error)\n    y = words\n    y[:3]",
        "words = f'{error}'\n    re.match('a', words)",
        "a, b = str(error), 1\n    a.removeprefix('x')",
        "self.why = str(error)\n    self.why.endswith('x')",
        "match str(error):\n        case 'a': pass",
        "parsed(str(error))",
        "parsed(text=f'{error}')",
        "words = str(error) if x else ''\n    'a' in words",
        "any(one in str(error) for one in 'ab')",
        "traceback.format_exc().count('a')",
    ],
)
def test_every_way_to_read_the_text_of_an_exception_is_seen(line):
    assert text_tests(f"try:\n    f()\nexcept ValueError as error:\n    {line}\n"), line
    assert text_tests(f"def f(error: ValueError | None):\n    {line}\n"), line


@pytest.mark.parametrize(
    "line",
    [
        "raise InputError('a', hint=f' failed ({error}): mend it.') from None",
        "raise ValueError(str(error)) from None",
        "words = f'{x}: {error}'\n    print(words)",
        "errors.append(str(error))",
        "if isinstance(error, KeyError) and error.path[0] == 'a': raise",
        "log('%s', error)",
    ],
)
def test_a_text_may_be_quoted(line):
    assert text_tests(f"try:\n    f()\nexcept ValueError as error:\n    {line}\n") == []


def test_all_that_concerns_the_other_nodes_goes_through_the_membership():
    paths = (SOURCE / "torch").rglob("*.py")
    found = {path.name for path in paths if any(name.startswith("torch.distributed") for name in imports(path))}
    assert found == {"membership.py", "failure_detector.py", "process_group.py", "node_status.py"} | {
        "elastic.py", "elastic_group.py", "addresses.py", "transfer.py",  # the membership that changes, and its stores
        "__main__.py", "launcher.py",  # which start and end the processes of a training
    }  # fmt: skip
