"""The soak for some seconds, next to the closed form only; `make test-release` runs ten minutes of it. See soak.py."""

import pytest
from soak import ONE_HOST, Soak, made


@pytest.mark.release
@pytest.mark.timeout(300)
def test_some_seconds_under_fire(forker, tmp_path):
    """Without what takes long by itself."""
    run = Soak(forker, tmp_path / "short", seed=3)

    def play():
        run.begin()
        run.fire(10.0, {kind: weight for kind, weight in ONE_HOST.items() if kind != "hang"})
        return run.finish(rounds=150)

    report = made(run, play, None)
    assert not report["problems"], report["problems"]
    assert len(report["faults"]) > 1
