import os
import sys
from pathlib import Path

from hypothesis import settings

for folder in (".", "paper"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two workers run on two cores

settings.register_profile("stgt", deadline=None, derandomize=True)
settings.load_profile("stgt")
