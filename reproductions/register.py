"""Registers the networks and the image sets of the experiments: `--import reproductions/register.py`."""

import sys
from pathlib import Path

CLONE = str(Path(__file__).resolve().parents[1])
if CLONE not in sys.path:
    sys.path.insert(0, CLONE)

import reproductions.images  # noqa: E402
import reproductions.training.models  # noqa: E402, F401
