"""The soak, for a short time: see soak.py."""

import pytest
from soak import ONE_HOST, Soak, made, soak


@pytest.mark.release
@pytest.mark.timeout(2400)
def test_ten_minutes_under_fire(forker, tmp_path):
    """Ends as if nothing had happened, and every fault is told by an event."""
    report = soak(forker, tmp_path / "soak", seconds=600, seed=7)
    assert not report["problems"], report["problems"]
    assert len(report["faults"]) > 50


@pytest.mark.release
@pytest.mark.timeout(300)
def test_some_seconds_under_fire(forker, tmp_path):
    """Without what takes long by itself; next to the closed form only."""
    run = Soak(forker, tmp_path / "short", seed=3)

    def play():
        run.begin()
        run.fire(10.0, {kind: weight for kind, weight in ONE_HOST.items() if kind != "hang"})
        return run.finish(rounds=150)

    report = made(run, play, None)
    assert not report["problems"], report["problems"]
    assert len(report["faults"]) > 1
