import sys
from pathlib import Path

import pytest
from hypothesis import settings

for folder in (".", "paper"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

settings.register_profile("stgt", deadline=None, derandomize=True)
settings.load_profile("stgt")


@pytest.fixture(autouse=True, scope="session")
def one_thread_a_process():
    """Two workers run side by side on two cores."""
    import os

    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
