"""Two runs are the same to the last bit: what resumed runs are held against."""

import numpy as np

import stgt


def assert_same_bits(found: stgt.Trace, expected: stgt.Trace, **differ) -> None:
    """All that a trace measures and counts, and all that it needs to go on; `differ` names what may be otherwise."""
    assert list(found) == list(expected)
    for name in expected:
        assert_same_array(found[name], expected[name], name)
    for group in ("state", "memory"):
        one, other = getattr(found.run_state, group), getattr(expected.run_state, group)
        assert list(one) == list(other), group
        for name in other:
            assert_same_array(one[name], other[name], f"{group}[{name!r}]")
    assert (found.run_state.ahead is None) == (expected.run_state.ahead is None)
    if expected.run_state.ahead is not None:
        assert_same_array(found.run_state.ahead, expected.run_state.ahead, "ahead")
    assert_same_array(found.run_state.links, expected.run_state.links, "links")
    assert_same_array(found.diverged_at, expected.diverged_at, "diverged_at")
    assert found.seconds.shape == expected.seconds.shape == (expected.rounds + 1,)
    assert (np.diff(found.seconds) >= 0).all(), "a clock that went back"
    for name in ("seeds", "rounds", "engine", "dtype", "interrupted", "absent", "notes"):
        if name not in differ:
            assert getattr(found, name) == getattr(expected, name), name


def assert_same_array(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Shape, type and bytes: −0 is not 0, and NaN is NaN."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
    if found.tobytes() != expected.tobytes():
        at = tuple(int(i) for i in np.argwhere(_bits(found) != _bits(expected))[0])
        raise AssertionError(f"{name} differs first at {at}: {found[at]!r}, and should be {expected[at]!r}")


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
