"""What a run measures, handed to a logger as it is made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stgt._internal.loggers import Logger
from stgt.simulator.choice import distinct, in_words
from stgt.simulator.job import Job


def log_rounds(logger: Logger, job: Job, first: int, found: Mapping[str, np.ndarray]) -> None:
    """Logs measurements (runs, rounds) from round `first` on: means over the seeds, several settings by name."""
    algorithms = [setting.algorithm for setting in job.settings]
    prefixes = [f"{words}/" for words in distinct([in_words(one, algorithms) for one in algorithms])]
    prefixes = prefixes if len(prefixes) > 1 else [""]
    with np.errstate(over="ignore", invalid="ignore"):
        means = {
            f"{prefix}{name}": runs.astype(np.float64).mean(axis=0).tolist()
            for name in job.measured.all_names
            for prefix, runs in zip(prefixes, np.split(found[name], len(prefixes)), strict=True)
        }
    for r, row in enumerate(zip(*means.values(), strict=True), first):
        if r >= job.log_from:
            logger.log(dict(zip(means, row, strict=True)), r)
