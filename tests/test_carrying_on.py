"""What those need who carry on: how to cite, the workflows, the hooks, one version, and tools where they may be."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import stgt

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CI_RUN = (ROOT / ".ci" / "run").read_text()


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def pinned(package: str) -> str:
    """Its version in constraints.txt."""
    (version,) = re.findall(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
    return version


def test_the_citation_has_what_its_format_requires():
    """The required keys of https://github.com/citation-file-format/citation-file-format, schema 1.2.0."""
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == stgt.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == ["Huang", "Xu", "Chen", "Johansson"]
    assert f"*{paper['title']}*]({paper['url']})" in (ROOT / "README.md").read_text()


def test_the_version_stands_in_one_place():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["hatch"]["version"] == {"path": "src/stgt/__init__.py"}
    assert f"\n## {stgt.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_there_are_workflows_for_tests_docs_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "release"]
    assert ".ci/run" in [step.get("run") for step in steps(read_yaml(ROOT / ".github/workflows/ci.yml"))]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_no_more_than_it_must(path):
    """All may read; a job that writes says what. Actions are pinned to a major version, and a job ends some time."""
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow, "YAML 1.1 reads the key `on` as true"
    for job in workflow["jobs"].values():
        assert set(job.get("permissions", {})) <= {"contents", "pages", "id-token"}
        assert job["timeout-minutes"] > 0
    for step in steps(workflow):
        assert re.search(r"@(release/)?v\d+$", step.get("uses", "@v1"))
        assert "${{" not in step.get("run", ""), "what others can choose is no part of a script"


def test_what_is_made_by_name_exists():
    """Every `make X` of the workflows, of .ci/run and of the pages for those who carry on."""
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    texts = [CI_RUN, *(str(step.get("run")) for path in WORKFLOWS for step in steps(read_yaml(path)))]
    texts += [word for page in ("CONTRIBUTING", "RELEASING") for word in code(ROOT / f"{page}.md")]
    named = {name for text in texts for name in re.findall(r"^\s*make ([a-z-]+)", text, flags=re.M)}
    assert {"test", "test-rest", "lint", "docs"} <= named <= rules


def code(page: Path) -> list[str]:
    """What a page has between backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text())


def test_the_hooks_use_the_same_ruff():
    hooks = {repo["repo"]: repo for repo in read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]}
    assert hooks["https://github.com/astral-sh/ruff-pre-commit"]["rev"] == f"v{pinned('ruff')}"
    assert {hook["id"] for repo in hooks.values() for hook in repo["hooks"]} == {
        "ruff-check",
        "ruff-format",
        "end-of-file-fixer",
        "trailing-whitespace",
        "check-toml",
        "check-yaml",
        "check-added-large-files",
    }


APT_GET = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *install*) exit {code};; esac
"""


@pytest.mark.parametrize(
    ("programs", "said", "installs"),
    [
        ({"chromium": "#!/bin/sh\n", "nginx": "#!/bin/sh\n"}, "tools: chromium and nginx are there.", False),
        (
            {"chromium": "#!/bin/sh\n"},
            "no nginx, and no apt-get to install it with; tests that need it are skipped.",
            False,
        ),
        ({"apt-get": 0, "id": "#!/bin/sh\necho 0\n"}, "installed chromium nginx.", True),
        ({"apt-get": 100, "id": "#!/bin/sh\necho 0\n"}, "could not be installed; tests that need it", True),
        ({"apt-get": 0, "id": "#!/bin/sh\necho 7\n"}, "takes root or sudo without a password; tests", False),
        (
            {"apt-get": 0, "id": "#!/bin/sh\necho 7\n", "sudo": '#!/bin/sh\nshift\nexec "$@"\n'},
            "installed chromium nginx.",
            True,
        ),
        ({"apt-get": 0, "id": "#!/bin/sh\necho 7\n", "sudo": "#!/bin/sh\nexit 1\n"}, "takes root or sudo", False),
    ],
    ids=["there", "no apt-get", "root", "no network", "no sudo", "sudo", "sudo asks"],
)
def test_a_browser_and_a_proxy_are_installed_where_they_may_be(tmp_path, programs, said, installs):
    """With programs of our own in the place of the system's; whatever happens, the tests go on."""
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    for name in ("bash", "env", "timeout", "true"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    for name, text in programs.items():
        script = tmp_path / "bin" / name
        script.write_text(text if isinstance(text, str) else APT_GET.format(log=log, code=text))
        script.chmod(0o755)
    environment = os.environ | {"PATH": str(tmp_path / "bin")}
    result = subprocess.run([ROOT / ".ci" / "tools"], env=environment, capture_output=True, text=True, check=True)
    assert said in result.stdout
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
    assert log.exists() == installs
    assert not installs or log.read_text().splitlines()[-1].endswith(" chromium nginx")
    assert ".ci/tools\n" in CI_RUN
