"""Experiments: the paper's, ready to run, and a user's, from a spec file to results on disk."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stgt.experiments.outcome import Claim, Outcome, divergences, write_outcome
    from stgt.experiments.reproductions import EXPERIMENTS, reproduce
    from stgt.experiments.ridge_demo import demo, summary
    from stgt.experiments.spec import RunSpec, Spec, load_spec, make, make_all
    from stgt.specs import spec_text

# Loaded when they are first asked for: all of them take half a second.
_ELSEWHERE = {
    "EXPERIMENTS": "stgt.experiments.reproductions",
    "Claim": "stgt.experiments.outcome",
    "Outcome": "stgt.experiments.outcome",
    "RunSpec": "stgt.experiments.spec",
    "Spec": "stgt.experiments.spec",
    "demo": "stgt.experiments.ridge_demo",
    "divergences": "stgt.experiments.outcome",
    "load_spec": "stgt.experiments.spec",
    "make": "stgt.experiments.spec",
    "make_all": "stgt.experiments.spec",
    "reproduce": "stgt.experiments.reproductions",
    "spec_text": "stgt.specs",
    "summary": "stgt.experiments.ridge_demo",
    "write_outcome": "stgt.experiments.outcome",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'stgt.experiments' has no attribute {name!r}")


__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Outcome",
    "RunSpec",
    "Spec",
    "demo",
    "divergences",
    "load_spec",
    "make",
    "make_all",
    "reproduce",
    "spec_text",
    "summary",
    "write_outcome",
]
