"""Spec files: names and arguments in TOML, and the objects they stand for."""

from stgt.specs.entries import EntryError, in_file
from stgt.specs.making import (
    Named,
    algorithm_of,
    call,
    make_algorithm,
    make_oracle,
    make_problem,
    make_topology,
)
from stgt.specs.reading import read_spec, spec_text

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
