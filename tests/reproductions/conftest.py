import numpy as np
import pytest

from stgt.problems import datasets


@pytest.fixture
def small_a9a(tmp_path, monkeypatch):
    """Writes an a9a of so many rows, and gives its folder: three features of noise, and one that says the label seven
    times out of eight."""

    def write(rows):
        monkeypatch.setitem(datasets.LIBSVM, "a9a", (rows, 4))
        rng = np.random.default_rng(0)
        lines = []
        for i in range(rows):
            label = 1 if i % 2 else -1
            values = [*rng.normal(size=3).round(3), label if i % 8 else -label]
            lines.append(f"{label} " + " ".join(f"{k + 1}:{value}" for k, value in enumerate(values)))
        (tmp_path / "a9a").write_text("\n".join(lines) + "\n")
        return tmp_path

    return write
