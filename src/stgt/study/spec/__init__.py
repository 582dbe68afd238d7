"""Spec files: names and arguments in TOML, and the objects they stand for."""

from stgt.study.spec.build import algorithm_of, build_algorithm, build_oracle, build_topology, call
from stgt.study.spec.load import Named, in_spec, read_spec, spec_text

__all__ = [
    "Named",
    "algorithm_of",
    "build_algorithm",
    "build_oracle",
    "build_topology",
    "call",
    "in_spec",
    "read_spec",
    "spec_text",
]
