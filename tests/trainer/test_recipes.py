"""The recipes of docs/recipes.md: each ends where the plain loop with the same batches ends."""

import json
import subprocess
import sys

import pytest
from nodes import HERE, python_environment
from recipe import PLAIN, TAU

WAYS = [
    *((recipe, "stgt") for recipe in PLAIN if recipe.endswith((".py", "--manual"))),
    *((recipe, group) for recipe in ("lightning", "accelerate", "trainer") for group in ("library", "stgt")),
]


@pytest.mark.release
@pytest.mark.parametrize(("recipe", "group"), WAYS)
def test_a_recipe_is_the_plain_loop(tmp_path, recipe, group):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(HERE / "recipe.py"), recipe, group, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=python_environment() | {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    nodes = [json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in (0, 1)]
    steps = PLAIN[recipe].steps
    for node in nodes:
        assert node["rounds"] == steps // TAU
        assert node["moved"] > 0.1  # it has trained,
        assert node["off"] < 1e-5 * max(1.0, node["moved"])  # to where the plain loop does, but for rounding
        assert node["others"] == []  # and the library asked nothing of all processes meanwhile
        assert len(node["batches"]) == steps * PLAIN[recipe].parts
        assert {i for batch in node["batches"] for i in batch} <= set(node["share"])
    assert not set(nodes[0]["share"]) & set(nodes[1]["share"])
    if nodes[0]["mean"] is not None:
        assert nodes[0]["mean"] == 0.5  # the library's own collectives work beside ours
