"""Comparisons that are ready to run."""

from stgt.experiments.outcome import Claim, Outcome, divergences, write_outcome
from stgt.experiments.reproduce import EXPERIMENTS, reproduce
from stgt.experiments.ridge_demo import demo, summary
from stgt.experiments.spec import RunSpec, Spec, load_spec, make, make_all
from stgt.specs import spec_text

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
