"""Spec files: names and arguments in TOML, and the objects they stand for."""

from stgt.study.spec.build import (
    Named,
    algorithm_of,
    call,
    make_algorithm,
    make_oracle,
    make_problem,
    make_topology,
)
from stgt.study.spec.load import read_spec, spec_text
from stgt.study.spec.paths import EntryError, in_file

__all__ = [
    "EntryError",
    "Named",
    "algorithm_of",
    "call",
    "in_file",
    "make_algorithm",
    "make_oracle",
    "make_problem",
    "make_topology",
    "read_spec",
    "spec_text",
]
