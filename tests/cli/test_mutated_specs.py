"""300 spec files that are wrong in one way each: exit code 2 and a sentence that names the entry, never a traceback."""

import contextlib
import io
import sys
from pathlib import Path

import pytest
from mutated import valid
from mutations import Mutation, drawn

from stgt.cli import main
from stgt.study import build_all, load_spec

MUTATIONS = drawn(300)
COMMANDS = ("check", "run", "sweep", "compare")


def command(*arguments: str) -> tuple[int, str, str]:
    """A command as a user would call it: its exit code, and what it writes."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["stgt", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files that the specs name."""
    found = tmp_path_factory.mktemp("specs")
    valid(found)
    return found


def test_what_the_mistakes_are_made_in_is_right(tmp_path):
    for path in valid(tmp_path):
        assert build_all(load_spec(path), path)


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, marks=[pytest.mark.thorough] * (at >= 40), id=f"{at}-{one.kind}")
        for at, one in enumerate(MUTATIONS)
    ],
)
def test_a_wrong_spec_is_one_sentence(folder: Path, mutation: Mutation, monkeypatch):
    """With each of the commands that read a spec, in turn."""
    monkeypatch.chdir(folder)
    path = folder / "spec.toml"
    path.write_bytes(mutation.content)
    code, _, said = command(COMMANDS[MUTATIONS.index(mutation) % len(COMMANDS)], str(path))
    assert code == 2, said
    assert len(said.splitlines()) == 1, said
    assert said.startswith("stgt: ")
    assert said.rstrip("\n").endswith((".", "?")), said
    assert "Traceback" not in said
    assert "spec.toml" in said, "the file is named"
    assert not (folder / "runs").exists(), "nothing was begun"
    sentence = said.split("spec.toml", 1)[1]
    assert mutation.names == ("spec.toml",) or any(name in sentence for name in mutation.names), (said, mutation.names)


def test_a_spec_that_is_not_there(folder):
    for path in (folder / "none.toml", folder, folder / "none" / "spec.toml", "x" * 5000):
        code, _, said = command("check", str(path))
        assert code == 2
        assert len(said.splitlines()) == 1
        assert "cannot be read" in said
