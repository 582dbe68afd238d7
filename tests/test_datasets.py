"""LIBSVM's files from a folder: what is read, and what is refused in one sentence."""

import bz2

import numpy as np
import pytest

from stgt.problems import datasets, load_libsvm
from stgt.study.spec.runs import RunSpec, build_run

ROWS, COLUMNS = 12, 4
TEXT = "".join(f"{1 if i % 3 == 0 else -1} {i % 3 + 1}:1 4:{i}.5\n" for i in range(ROWS))  # 4 rows of label +1, 8 of −1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small a9a in LIBSVM's format."""
    monkeypatch.setitem(datasets.LIBSVM, "a9a", (ROWS, COLUMNS))
    (tmp_path / "a9a").write_text(TEXT)
    return tmp_path


def problem(folder, **options):
    part = {"name": "logistic", "data": "a9a", "n": 2, "l2": 0.1, **options}
    run = {"algorithm": {"name": "STGT", "gamma": 0.1}, "problem": part, "topology": {"name": "ring"}}
    return build_run(RunSpec.model_validate(run), folder).problem


def test_features_and_labels(folder):
    features, labels = load_libsvm("a9a", folder)
    assert features.shape == (ROWS, COLUMNS)
    assert labels.tolist() == [1 if i % 3 == 0 else -1 for i in range(ROWS)]
    assert features[5].tolist() == [0, 0, 1, 5.5]


def test_any_file_in_the_format_is_a_data_set(folder):
    (folder / "own").write_text("3 1:0.5 3:2\n1 2:1\n2 1:4\n")
    features, labels = load_libsvm("own", folder)
    np.testing.assert_array_equal(features, [[0.5, 0, 2], [0, 1, 0], [4, 0, 0]])  # index:value, indices from 1
    assert labels.tolist() == [3, 1, 2]
    spread = problem(folder, name="least_squares", data="own", n=3)
    assert (spread.n, spread.p, spread.counts.sum()) == (3, 3, 3)
    with pytest.raises(ValueError, match=r"problem\.rows=2: own has 3 different labels, not two; leave rows out\."):
        problem(folder, data="own", rows=2)


def test_compressed_and_in_a_folder_libsvm(folder):
    plain = load_libsvm("a9a", folder)
    (folder / "a9a").unlink()
    (folder / "libsvm").mkdir()
    (folder / "libsvm" / "a9a.bz2").write_bytes(bz2.compress(TEXT.encode()))
    for one, other in zip(plain, load_libsvm("a9a", str(folder)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_wrong_is_said(folder):
    (folder / "w8a").write_text(TEXT)
    (folder / "mushrooms").write_text("1 one:1\n")
    (folder / "phishing.bz2").write_bytes(bz2.compress(TEXT.encode())[:40])
    for name, where, words in (
        ("a9", folder, r"holds no a9 or a9\.bz2: .* into it; did you mean 'a9a'\?"),
        ("", folder, "name='': give the name of a file"),
        ("a9a", None, "^data_dir was left out"),
        ("ijcnn1", folder, "holds no ijcnn1 or ijcnn1.bz2"),
        ("w8a", folder, "has 12 rows where w8a has 49749"),
        ("mushrooms", folder, "is not in LIBSVM's format"),
        ("phishing", folder, "is (damaged|not in LIBSVM's format)"),
    ):
        with pytest.raises(ValueError, match=words):
            load_libsvm(name, where)
    (folder / "a9a").write_text(TEXT.replace("4:3.5", "4:nan"))
    with pytest.raises(ValueError, match="must be finite numbers"):
        load_libsvm("a9a", folder)


def test_rows_of_a_run_hold_as_many_of_each_label(folder):
    whole, some = problem(folder), problem(folder, rows=8)
    assert whole.counts.sum() == ROWS
    assert some.counts.sum() == 8
    apart = problem(folder, rows=8, partition="label")
    assert apart.counts.tolist() == [4, 4]
    assert apart.value(np.ones(COLUMNS)) == pytest.approx(some.value(np.ones(COLUMNS)), rel=1e-12), "one f for both"
    with pytest.raises(ValueError, match=r"problem.rows=10: a9a has 4 rows of its rarer label; give at most 8\."):
        problem(folder, rows=10)
    for wrong in (1, "many", [4]):
        with pytest.raises(ValueError, match=r"problem\.rows"):
            problem(folder, rows=wrong)


def test_a_wider_table_is_the_same_problem(folder):
    narrow, wide = problem(folder), problem(folder, width=20)
    x = np.arange(COLUMNS) / COLUMNS
    assert wide.data["signed"].shape == (2, 20, COLUMNS)
    np.testing.assert_allclose(wide.gradients(x), narrow.gradients(x), rtol=1e-13)
    assert wide.value(x) == pytest.approx(narrow.value(x), rel=1e-13)
    np.testing.assert_allclose(wide.optimum, narrow.optimum, atol=1e-12)
    assert wide.counts.tolist() == narrow.counts.tolist()
    with pytest.raises(ValueError, match="width=2: give a whole number of at least 6"):
        problem(folder, width=2)
