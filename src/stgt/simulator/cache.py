"""Keeps compiled programs on disk, so that the next process need not compile them again.

They are in the user's cache folder, separate for each kind of processor. STGT_CACHE=FOLDER changes the folder; an empty
STGT_CACHE= turns the cache off. A cache that the user has configured in JAX is not changed.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from pathlib import Path

from stgt._internal.digest import digest
from stgt._internal.xla import QUIET, jax

LARGEST = 2**30  # bytes; if there are more, the oldest programs are removed


def keep_compiled() -> None:
    """Makes JAX store what it compiles. If the folder cannot be written to, each process compiles again."""
    folder, features = _folder(), _features()
    if not QUIET and "avx512" in features:
        return  # loading a program from the cache would print an error: see stgt._internal.xla
    given = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder is None or given is not None:
        return
    folder = folder / digest(features)[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(folder)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    # Another process may be writing an entry: the program is then compiled again, without a warning.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _folder() -> Path | None:
    given = os.environ.get("STGT_CACHE")
    if given is not None:
        return Path(given).expanduser() if given else None
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "stgt" / "compiled"


def _features() -> str:
    """The processor's features. A program compiled for a processor with more features would crash."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return " ".join([platform.machine(), platform.processor(), *dict.fromkeys(named)])


def _prune(folder: Path) -> None:
    """If the programs take too much space, removes the oldest until half of it is free again."""
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in folder.iterdir() if file.is_file())
    total = sum(size for _, size, _ in files)
    if total <= LARGEST:
        return
    for _, size, file in files:
        file.unlink(missing_ok=True)
        total -= size
        if total <= LARGEST // 2:
            return
