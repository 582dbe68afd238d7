"""The user's own data files: what is read, and what is refused by row and column."""

import bz2

import numpy as np
import pytest

import stgt
from stgt.problems import load_table
from stgt.study.spec.runs import RunSpec, build_run

HEADED = "age,dose,site,ill\n20,0.5,b,no\n30,1.5,a,yes\n\n40,2.5,b,yes\n50,3.5,a,no\n"


def file(folder, text, name="own.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problem(path, **options):
    part = {"name": "logistic", "data": str(path), "l2": 0.1, **options}
    run = {"algorithm": {"name": "STGT", "gamma": 0.1}, "problem": part, "topology": {"name": "ring"}}
    return build_run(RunSpec.model_validate(run)).problem


# -- what is read -------------------------------------------------------------------------------------------------


def test_a_header_names_columns_and_labels_may_be_words(tmp_path):
    found = load_table(file(tmp_path, HEADED), label="ill", node="site")
    np.testing.assert_array_equal(found.features, [[20, 0.5], [30, 1.5], [40, 2.5], [50, 3.5]])
    assert found.labels.tolist() == ["no", "yes", "yes", "no"]
    assert [part.tolist() for part in found.parts] == [[1, 3], [0, 2]], "site a, then site b"
    assert load_table(file(tmp_path, HEADED), node=2).labels.tolist() == found.labels.tolist(), "the last if left out"


def test_columns_are_left_out(tmp_path):
    """What is in them need not be numbers. The label is the last column that is left."""
    found = load_table(file(tmp_path, HEADED), drop=["site", "ill"])
    np.testing.assert_array_equal(found.features, [[20], [30], [40], [50]])
    assert found.labels.tolist() == [0.5, 1.5, 2.5, 3.5]
    by_number = load_table(file(tmp_path, "x,1,2,0\ny,3,5,1\n"), drop=[0, 2])
    np.testing.assert_array_equal(by_number.features, [[1], [3]])
    assert by_number.columns == ("'1'",)
    spread = problem(file(tmp_path, HEADED), node="site", drop=["dose"])
    np.testing.assert_array_equal(np.abs(spread.data["signed"][0]), [[30], [50]])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_without_a_header_columns_have_numbers(tmp_path, delimiter, start):
    text = start + "1,2.5,7\n3,-4e-1,8\n".replace(",", delimiter)
    found = load_table(file(tmp_path, text), label=0)
    np.testing.assert_array_equal(found.features, [[2.5, 7], [-0.4, 8]])
    assert found.labels.tolist() == [1, 3]
    words = load_table(file(tmp_path, "1,2,yes\n3,4,no\n"))
    assert words.labels.tolist() == ["yes", "no"], "a first row with numbers is no header"


def test_quoted_cells_and_names(tmp_path):
    found = load_table(file(tmp_path, '"a, b","c"\n" 1 ","2"\n3,4\n'))
    np.testing.assert_array_equal(found.features[:, 0], [1, 3])
    assert found.columns == ("'a, b'",)


def test_nodes_with_numbers_are_in_their_order(tmp_path):
    found = load_table(file(tmp_path, "x,node,y\n1,10,0\n2,9,1\n3,10,1\n"), node="node")
    assert [part.tolist() for part in found.parts] == [[1], [0, 2]], "9 before 10"


def test_arrays(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, features=np.arange(6).reshape(3, 2), labels=[0, 1, 1], place=["b", "a", "b"])
    found = load_table(path, node="place")
    np.testing.assert_array_equal(found.features, [[0, 1], [2, 3], [4, 5]])
    assert found.features.dtype == np.float64
    assert [part.tolist() for part in found.parts] == [[1], [0, 2]]


@pytest.mark.parametrize("name", ["own.libsvm", "own.svm", "own.txt", "own.bz2"])
def test_libsvm(tmp_path, name):
    text = b"1 1:0.5 3:2\n-1 2:1\n"
    (tmp_path / name).write_bytes(bz2.compress(text) if name.endswith("bz2") else text)
    found = load_table(tmp_path / name)
    np.testing.assert_array_equal(found.features, [[0.5, 0, 2], [0, 1, 0]])
    assert found.labels.tolist() == [1, -1]


def test_standardised_columns_and_an_intercept(tmp_path):
    plain = load_table(file(tmp_path, HEADED), node="site")
    found = load_table(tmp_path / "own.csv", node="site", standardise=True, intercept=True)
    np.testing.assert_allclose(found.features[:, :2].mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(found.features[:, :2].var(axis=0), 1)
    np.testing.assert_array_equal(found.features[:, 2], 1)
    np.testing.assert_allclose(np.corrcoef(found.features[:, 0], plain.features[:, 0])[0, 1], 1)


# -- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "a hole": ("a,b\n1,2\n,3\n", {}, r"data .*own\.csv: column 'a' has nothing in line 3; fill the cell"),
    "NaN": ("a,b\n1,2\nNaN,3\n", {}, "column 'a' has nothing but 'NaN' in line 3"),
    "a missing label": ("a,b\n1,2\n1,NA\n", {}, "column 'b' has nothing but 'NA' in line 3"),
    "a text": ("a,b\n1,2\n\nold,3\n", {}, "column 'a' has 'old' in line 4; features are numbers"),
    "a text without header": ("1,2,3\n1,x,3\n", {}, "column '1' has 'x' in line 2"),
    "infinite": ("a,b\n1,2\n-inf,3\n", {}, "column 'a' has -inf in line 3; give a finite number"),
    "too short": ("a,b,c\n1,2,3\n1,2\n", {}, "line 3 has 2 cells where the first has 3"),
    "too long": ("1,2\n1,2,3\n", {}, "line 2 has 3 cells where the first has 2"),
    "empty": ("", {}, "own.csv is empty"),
    "blank": ("\n  \n", {}, "own.csv is empty"),
    "a header alone": ("a,b\n", {}, "has a header and no rows"),
    "labels alone": ("a\n1\n2\n", {}, "has only a column of labels"),
    "no such column": ("age,b\n1,2\n", {"label": "aeg"}, r"label='aeg': the columns of .* did you mean 'age'\?"),
    "no such number": ("a,b\n1,2\n", {"label": 2}, r"label=2: .* has columns 0 to 1\."),
    "a name without header": ("1,2\n3,4\n", {"label": "a"}, "label='a': .* has no header; give a column's number"),
    "two of the name": ("a,a,b\n1,2,3\n", {"label": "a"}, "several columns of .* are called so"),
    "one column for two": ("a,b\n1,2\n", {"label": "b", "node": "b"}, "node='b': column b holds the labels"),
    "nothing left": ("a,b\n1,2\n", {"drop": ["a", "b"]}, r"drop=\['a', 'b'\]: column a is the label or the node"),
    "a label that is left out": ("a,b\n1,2\n", {"label": "a", "drop": ["a"]}, "column a is the label or the node"),
    "one word": ("a,b\n1,2\n", {"drop": "a"}, r"drop='a': give a list of columns, such as \['id', 'date'\]"),
    "to leave out nothing": ("a,b\n1,2\n", {"drop": ["c"]}, r"drop='c': the columns of .* are 'a', 'b'"),
    "a flag": ("a,b\n1,2\n", {"label": True}, "label=True: the columns"),
    "one value": ("a,b,c\n1,2,0\n1,3,1\n", {"standardise": True}, "standardise=true: column 'a' of .* has one value"),
    "standardise a word": ("a,b\n1,2\n", {"standardise": "yes"}, "standardise='yes': give True or False"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_table_is_named(tmp_path, name):
    text, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as caught:
        load_table(file(tmp_path, text), **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_files_that_are_something_else(tmp_path):
    file(tmp_path, HEADED)
    (tmp_path / "latin.csv").write_bytes("größe,b\n1,2\n".encode("latin-1"))
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 no zip file")
    (tmp_path / "text.npz").write_text("features")
    (tmp_path / "text.svm").write_text("yes 1:2\n")
    (tmp_path / "wide.svm").write_text("1 1000000000:1\n-1 1:2\n")
    (tmp_path / "nan.svm").write_text("1 1:nan\n-1 1:2\n")
    (tmp_path / "cut.bz2").write_bytes(bz2.compress(b"1 1:2\n" * 99)[:30])
    np.savez(tmp_path / "other.npz", X=[1])
    np.savez(tmp_path / "shapes.npz", features=np.ones((3, 2)), labels=np.ones(2))
    np.savez(tmp_path / "flat.npz", features=np.ones(3), labels=np.ones(3))
    np.savez(tmp_path / "nan.npz", features=[[1.0], [np.nan]], labels=[0, 1])
    np.savez(tmp_path / "objects.npz", features=np.array([[1], [2]], dtype=object), labels=[0, 1])
    (tmp_path / "folder.csv").mkdir()
    for name, words in (
        ("onw.csv", r"cannot be read \(No such file or directory\): .*did you mean 'own\.csv'\?"),
        ("folder.csv", r"cannot be read \(Is a directory\)"),
        ("own.xlsx", "give a file that ends in .csv, .npz"),
        ("latin.csv", "is not UTF-8"),
        ("zip.npz", "is damaged"),
        ("text.npz", "is not npz with plain arrays"),
        ("objects.npz", "is not npz with plain arrays"),
        ("other.npz", "data='features': no array of .* which has 'X'"),
        ("shapes.npz", r"labels has shape \(2,\); give \(3,\)"),
        ("flat.npz", r"features has shape \(3,\) and type float64; give \(rows, p\)"),
        ("nan.npz", r"features holds nan at \(1, 0\)"),
        ("text.svm", "is not in LIBSVM's format"),
        ("wide.svm", "2 rows of 1000000000 features are more than"),
        ("nan.svm", r"features holds nan at \(0, 0\)"),
        ("cut.bz2", "is (damaged|not in LIBSVM's format)"),
        ("a\0b.csv", "no path has such a character"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            load_table(tmp_path / name)
        assert "\n" not in str(caught.value), name
    with pytest.raises(ValueError, match="label='a': only a CSV file has columns"):
        load_table(tmp_path / "other.npz", label="a")
    with pytest.raises(ValueError, match=r"drop=\['a'\]: only a CSV file has columns"):
        load_table(tmp_path / "other.npz", drop=["a"])
    with pytest.raises(ValueError, match="node='a': a file in LIBSVM's format"):
        load_table(tmp_path / "nan.svm", node="a")


# -- in a spec ----------------------------------------------------------------------------------------------------


def test_a_spec_spreads_the_rows(tmp_path):
    path = file(tmp_path, HEADED.replace(",site", "").replace(",b,", ",").replace(",a,", ","))
    spread = problem(path, n=2, partition="label")
    assert spread.counts.tolist() == [2, 2]
    assert spread.p == 2
    at_sites = problem(file(tmp_path, HEADED), node="site", intercept=True)
    np.testing.assert_array_equal(np.abs(at_sites.data["signed"][0]), [[30, 1.5, 1], [50, 3.5, 1]])
    assert (at_sites.n, at_sites.p) == (2, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"node": "site", "n": 3}, r"problem\.n: node = 'site' gives 2 nodes; leave n out\."),
        (
            {"node": "site", "partition": "iid"},
            r"problem\.partition: node = 'site' defines the partition; leave it out\.",
        ),
        ({"node": "sight"}, r"problem\.node='sight': the columns of .*did you mean 'site'\?"),
        ({"n": 2}, r"problem\.data .*: column 'site' has 'b' in line 2"),
        ({"node": "site", "label": "age"}, r"problem\.data .*: column 'ill' has 'no' in line 2"),
        ({"node": "ill", "label": "site", "rows": 2}, r"problem\.rows: it is for LIBSVM's data sets"),
        ({"node": "site", "lable": "age"}, r"problem\.lable: logistic takes data, label, .*did you mean 'label'\?"),
        ({"node": "site", "l2": -1}, r"problem\.l2=-1"),
    ],
)
def test_what_is_wrong_in_a_spec_is_named(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        problem(file(tmp_path, HEADED), **options)


def test_labels_of_more_than_two_values_are_the_data_s(tmp_path):
    path = file(tmp_path, "1,2\n2,3\n3,4\n")
    with pytest.raises(ValueError, match=r"problem\.data: labels has 3 different values: logistic regression needs"):
        problem(path, n=1)


def test_a_problem_of_the_user_s_own_may_be_given_data(tmp_path):
    """Any registered function that takes features and labels."""

    @stgt.register(name="own_regression")
    def own(features, labels, n: int, l2: float = 1.0) -> stgt.Problem:
        return stgt.problems.least_squares(features, labels, n, l2=l2)

    found = problem(file(tmp_path, "1,2\n2,3\n3,4\n4,6\n"), name="own_regression", n=2, l2=0.5)
    assert (found.n, found.p, found.mu >= 0.5) == (2, 1, True)
