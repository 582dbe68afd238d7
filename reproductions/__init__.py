"""The paper's experiments and ours: figures, readings and claims. `stgt reproduce NAME` runs one."""

from reproductions.catalogue import EXPERIMENTS, prepared, works_in
from reproductions.outcome import Claim, Outcome, divergences, write_outcome

__all__ = ["EXPERIMENTS", "Claim", "Outcome", "divergences", "prepared", "works_in", "write_outcome"]
