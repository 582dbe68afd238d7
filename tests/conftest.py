import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

for folder in (".", "paper"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two workers run on two cores

settings.register_profile("stgt", deadline=None, derandomize=True)
settings.load_profile("stgt")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """`@pytest.mark.sampled(k, each=…)`: a case's place is a hash of its name, so that a new case moves no other's.

    Run are the cases whose hash k divides, and the lowest of each set of cases with the same values of the parameters
    `each`, so that every value is met; the others are thorough.
    """
    places, lowest = {}, {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            values = tuple(str(item.callspec.params[name]) for name in mark.kwargs.get("each", "").split())
            place, group = zlib.crc32(item.name.encode()), (item.function, values)
            places[item] = place, group, mark.args
            lowest[group] = min(place, lowest.get(group, place))
    for item, (place, group, divisors) in places.items():
        if place != lowest[group] and all(place % divisor for divisor in divisors):
            item.add_marker("thorough")


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A folder with MNIST's files unpacked, whose digit k is a bright bar in rows 2k and 2k + 1."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    folder.mkdir()
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        for offset in (0, 1):
            images[np.arange(count), 2 * labels + offset] = 200
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())
    return folder.parent
