"""Where another thread of this process stands."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

_HERE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_DISTRIBUTED = str(Path(_TORCH, "distributed", "distributed_c10d.py"))
_LIBRARY = sysconfig.get_paths()["stdlib"]
_PACKAGES = ("site-packages", "dist-packages")


def line_of(thread: int) -> str:
    """The innermost line of the user's own code, such as "train.py:40"; "" if there is none."""
    for frame in _frames(thread):
        name = frame.f_code.co_filename
        own = not name.startswith((_HERE, _TORCH, _LIBRARY, "<")) and not any(one in name for one in _PACKAGES)
        if own:
            return f"{Path(name).name}:{frame.f_lineno}"
    return ""


def collective_of(thread: int) -> str:
    """The function of torch.distributed that the user's code is in; "" if it is in none."""
    found = ""
    for frame in _frames(thread):
        name = frame.f_code.co_filename
        if name.startswith(_DISTRIBUTED):
            found = frame.f_code.co_name
        elif found and not name.startswith(_TORCH):
            return "" if name.startswith(_HERE) and "torch" in Path(name).parts[-2:] else found
    return found


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
