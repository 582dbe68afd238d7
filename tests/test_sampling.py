from sampling import Case, choose, share

GRAPHS = ("static", "directed", "server")


def cases(*algorithms: str, one_in: int | None = None) -> list[Case]:
    return [Case(f"test[{name}-{graph}]", name, one_in) for name in algorithms for graph in GRAPHS]


def chosen(given: list[Case]) -> set[str]:
    return {case.name for case, taken in zip(given, choose(given), strict=True) if taken}


def test_every_group_is_met_once():
    names = [f"method {i}" for i in range(50)]
    found = chosen(cases(*names))
    assert len(found) == 50
    assert all(any(f"[{name}-" in case for case in found) for name in names)


def test_a_new_case_and_another_order_move_no_other():
    before = cases("STGT", "KGT", "DSGT", one_in=4)
    after = cases("FedAvg", "DSGT", "STGT", "KGT", one_in=4)
    assert chosen(before) == {case for case in chosen(after) if "FedAvg" not in case}


def test_one_in_k_is_about_that_many():
    """Of 600 cases in one group, 150 are expected of k = 4, with a deviation of √(600 · ¼ · ¾) = 10.6: within four."""
    found = chosen([Case(f"test[{i}]", "all", 4) for i in range(600)])
    assert abs(len(found) - 150) < 43


def test_shares_are_disjoint_and_all_of_them_everything():
    files = [f"test_{i}.py" for i in range(10)]
    shares = [share(files + files, f"{k}/3") for k in range(7, 10)]
    assert sorted(one for part in shares for one in part) == sorted(files)
