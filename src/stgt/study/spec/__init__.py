"""Spec files: names and arguments in TOML, and the objects they stand for."""

from stgt.study.spec.build import (
    Named,
    algorithm_of,
    build_algorithm,
    build_oracle,
    build_problem,
    build_topology,
    call,
)
from stgt.study.spec.error_format import EntryError, in_file
from stgt.study.spec.load import read_spec, spec_text

__all__ = [
    "EntryError",
    "Named",
    "algorithm_of",
    "call",
    "in_file",
    "build_algorithm",
    "build_oracle",
    "build_problem",
    "build_topology",
    "read_spec",
    "spec_text",
]
