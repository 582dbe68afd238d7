"""The sdist and the wheel, and the wheel in an environment that has nothing but what it asks for."""

import json
import os
import subprocess
import sys
import tarfile
import venv
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import stgt

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

pytestmark = pytest.mark.release

SIMULATION = """
import stgt
problem, topology = stgt.problems.ridge(n=4, p=2), stgt.topology.ring(4)
trace = stgt.simulate(stgt.STGT(gamma=0.1, tau=5), problem, topology, rounds=20, seeds=2)
assert trace.residual.shape == (2, 21) and (trace.residual[:, -1] < trace.residual[:, 0]).all()
print(stgt.__file__)
"""
SPEC = """
algorithm = {name = "STGT", gamma = 0.1}
problem = {name = "ridge", n = 4}
topology = {name = "ring"}
"""


def run(*command, **options) -> subprocess.CompletedProcess[str]:
    """A command, started where nothing leads to the sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options |= {"capture_output": True, "text": True, "env": environment}
    return subprocess.run(list(map(str, command)), check=False, **options)


def call(*command, **options) -> str:
    """What a command prints that does what it is asked for."""
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, *options) -> Path:
    """By hatchling in an environment of its own, as for a release."""
    call(sys.executable, "-m", "build", *options, "--outdir", folder, ROOT, cwd=folder.parent)
    return folder


def needed(requirements: list[str], extras: frozenset[str] = frozenset(), found: set[str] | None = None) -> set[str]:
    """The installed distributions that meet the requirements, and those of these, and so on."""
    found = set() if found is None else found
    for requirement in map(Requirement, requirements):
        wanted = not requirement.marker or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras))
        if wanted and requirement.name not in found:
            found.add(requirement.name)
            needed(distribution(requirement.name).requires or [], frozenset(requirement.extras), found)
    return found


def show(names: set[str], folder: Path) -> None:
    """Links to all that these distributions have installed, and to nothing else."""
    folder.mkdir()
    for name in names:
        package = distribution(name)
        for top in {path.parts[0] for path in package.files or () if ".." not in path.parts}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The sdist, and the wheel that was built from it."""
    return build(tmp_path_factory.mktemp("package") / "dist")


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean(dist, wheel):
    """An environment with the wheel and what it requires; whatever else is installed here is not seen there."""
    folder = dist.parent / "clean"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    with ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"stgt-{stgt.__version__}.dist-info/METADATA"))
    show(needed(metadata.get_all("Requires-Dist", [])), dist.parent / "dependencies")
    (site / "dependencies.pth").write_text(str(dist.parent / "dependencies"))
    seen = call(python, "-c", "import importlib.util as i; print(*map(i.find_spec, ['stgt', 'torch', 'pytest']))")
    assert seen.split() == ["None"] * 3
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    with ZipFile(wheel) as archive:
        files = {file.filename: file.file_size for file in archive.infolist()}
    ours = {path for path in (SOURCE / "stgt").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    info = f"stgt-{stgt.__version__}.dist-info/"
    assert {name for name in files if not name.startswith(info)} == {str(path.relative_to(SOURCE)) for path in ours}
    assert "stgt/py.typed" in files
    assert info + "licenses/LICENSE" in files
    assert max(files.values()) < 1_000_000


def test_the_sdist_holds_what_a_developer_needs(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kinds = {"tests": "py", "docs": "md", "examples": "toml", "benchmarks": "py", "reproductions": "py"}
    for folder, kind in kinds.items():
        here = {str(page.relative_to(ROOT)) for page in (ROOT / folder).rglob(f"*.{kind}")}
        assert here
        assert here <= names
    assert {"Makefile", "constraints.txt", "CHANGELOG.md", "CITATION.cff", "LICENSE", ".ci/run"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


def test_the_tree_builds_the_same_wheel_as_the_sdist(wheel, tmp_path):
    (direct,) = build(tmp_path / "direct", "--wheel").iterdir()
    with ZipFile(wheel) as one, ZipFile(direct) as other:
        assert {file.filename: file.CRC for file in one.infolist()} == {f.filename: f.CRC for f in other.infolist()}


def test_the_wheel_works_in_a_clean_environment(clean, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    assert call(clean / "stgt", "--version", cwd=tmp_path) == f"stgt {stgt.__version__}\n"
    assert "reproduce" in call(clean / "stgt", "--help", cwd=tmp_path)
    assert "exponential" in call(clean / "stgt", "list", cwd=tmp_path)
    assert "spectral radius" in call(clean / "stgt", "check", "spec.toml", cwd=tmp_path)
    where = call(clean / "python", "-c", SIMULATION, cwd=tmp_path).strip()
    assert Path(where).is_relative_to(clean.parent)


def test_the_experiments_are_run_in_a_clone_and_nowhere_else(clean, wheel, tmp_path):
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "reproductions" in name]
    refused = run(clean / "stgt", "reproduce", "table1", "--out", "found", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "stgt: the experiments are not part of the installed package: run this in a clone of the repository."
    ]
    assert list(tmp_path.iterdir()) == []
    assert "a clone of the repository has them" in " ".join(
        call(clean / "stgt", "reproduce", "--help", cwd=tmp_path).replace("│", " ").split()
    )
    printed = call(clean / "stgt", "reproduce", "table1", "--out", tmp_path / "found", cwd=ROOT)
    assert "claims.json" in printed
    assert (tmp_path / "found" / "claims.json").is_file()


TYPED = """
import stgt

problem = stgt.problems.ridge(n=4, p=2, noise=0.1, seed=0)
topology = stgt.topology.exponential(4)
method = stgt.STGT(gamma=stgt.schedules.cosine(0.4, rounds=300), tau=5)
trace = stgt.simulate(method, problem, topology, rounds=20, seeds=2)
found = stgt.compare([stgt.STGT(tau=5), (stgt.Scaffold(tau=5), stgt.topology.server(4, sampled=2))], problem, topology,
                     rounds=20, seeds=2, grid={"gamma": [0.05, 0.1]})
print(trace.residual.mean(), trace["loss"], found, stgt.theory.check(method, problem, topology).radius)
reveal_type(trace)
reveal_type(found)
reveal_type(topology)
"""
WRONG = """
stgt.simulate(method, topology, problem, rounds=20)
stgt.STGT(gama=0.1)
print(trace.residuals)
"""


def test_the_package_is_typed_for_its_users(clean, tmp_path):
    (tmp_path / "use.py").write_text(TYPED + WRONG)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "basic"}))
    pyright = Path(sys.executable).with_name("pyright")
    command = [pyright, "--outputjson", "--pythonpath", clean / "python", "--project", tmp_path]
    printed = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path).stdout
    found = json.loads(printed)["generalDiagnostics"]
    last = len(TYPED.splitlines())
    said = [one for one in found if one["severity"] != "information"]
    assert [one["message"] for one in said if one["range"]["start"]["line"] < last] == []
    kinds = [one["message"].split('"')[3] for one in found if one["severity"] == "information"]
    assert kinds == ["Trace", "Comparison", "Topology"]
    assert {one["range"]["start"]["line"] for one in said} >= {last + 1, last + 2, last + 3}
