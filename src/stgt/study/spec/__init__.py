"""Spec files: names and arguments in TOML, and the objects that they describe."""

from stgt.study.spec.build import build_algorithm, build_oracle, build_topology
from stgt.study.spec.load import Named, in_spec, read_spec, spec_text

__all__ = [
    "Named",
    "build_algorithm",
    "build_oracle",
    "build_topology",
    "in_spec",
    "read_spec",
    "spec_text",
]
