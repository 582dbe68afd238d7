import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

for folder in (".", "paper"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two workers run on two cores

settings.register_profile("stgt", deadline=None, derandomize=True)
settings.load_profile("stgt")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """`@pytest.mark.sampled(k)`: of a function's cases every k-th is run, the others in `make test-all`."""
    seen = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            number = seen[item.function] = seen.get(item.function, -1) + 1
            if number % mark.args[0]:
                item.add_marker("thorough")
