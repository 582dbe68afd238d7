"""Progress of a job made of parts."""

from stgt._internal.progress import split_progress


def test_parts_count_up_to_the_whole_in_any_order():
    seen = []
    first, second = split_progress(lambda done, total: seen.append((done, total)), [30, 10])
    second(1, 2)
    first(1, 3)
    second(2, 2)
    first(3, 3)
    assert seen == [(5, 40), (15, 40), (20, 40), (40, 40)]


def test_nobody_has_to_listen():
    (tick,) = split_progress(None, [1])
    tick(1, 1)
