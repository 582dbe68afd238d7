"""JAX, as all parts of the library import it: without the complaints that XLA prints when it loads a compiled program.

For some processors a program is compiled with preferences, such as prefer-no-gather, which the loader then does not
find among the processor's features; it says so on standard error for every program that it loads (openxla/xla#44565).
How much is printed is settled when JAX is first imported.
"""

from __future__ import annotations

import os
import sys

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
FATAL, WARNINGS = "3", "1"  # the second is what JAX itself sets, also for the processes that it is a parent of

_given = os.environ.get(LEVEL, WARNINGS)
_first = "jax" not in sys.modules and _given == WARNINGS
if _first:
    os.environ[LEVEL] = FATAL
try:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.flatten_util import ravel_pytree
finally:
    if _first:
        os.environ[LEVEL] = WARNINGS

QUIET = _first or _given >= FATAL

__all__ = ["QUIET", "jax", "jnp", "lax", "ravel_pytree"]
