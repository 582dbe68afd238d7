"""An error about an argument is a value: path, value, hint; its text is made of these."""

import pickle
from pathlib import Path

import pytest

import stgt
from stgt._internal.checks import InputError, check_count, check_number, under


def test_an_error_holds_the_argument_the_value_and_what_to_give():
    with pytest.raises(stgt.InputError) as caught:
        stgt.STGT(gamma=-1, tau=2)
    error = caught.value
    assert (error.argument, error.value, error.hint) == ("gamma", -1, "give a finite number above 0.")
    assert str(error) == "gamma=-1: give a finite number above 0."
    assert isinstance(error, ValueError)


def test_callers_prepend_to_the_path():
    with pytest.raises(InputError) as caught, under("runs", 1), under("algorithm"):
        check_count(0, "tau")
    assert caught.value.path == ("runs", 1, "algorithm", "tau")
    assert str(caught.value) == "runs[1].algorithm.tau=0: give a whole number of at least 1."


def test_in_a_file_keys_are_written_as_toml_writes_them():
    error = InputError(("runs", 1, "a b", "c\nd"), 3, "give 4.")
    error.file = Path("spec.toml")
    assert str(error) == r"spec spec.toml: runs.1.'a b'.'c\nd'=3: give 4."


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("data_dir", hint=" was left out: give a folder."), "data_dir was left out: give a folder."),
        (InputError("data", Path("a.csv"), " is not UTF-8: save it."), "data a.csv is not UTF-8: save it."),
        (InputError("n", 3, ", but W has 4: leave it out."), "n=3, but W has 4: leave it out."),
        (InputError("out", hint="give another, or {other}.", other="force=True"), "out: give another, or force=True."),
        (InputError("p", 1.0 + 1e-12, "give 1."), "p=1.000000000001: give 1."),
        (InputError(("edges", 2), (0, 0), "leave it out."), "edges[2]=(0, 0): leave it out."),
    ],
)
def test_the_sentence_has_the_parts_that_are_given(error, text):
    assert str(error) == text


def test_the_words_of_the_caller_replace_the_names():
    error = InputError("out", Path("runs"), " is not empty: give another folder, or {other}.", other="force=True")
    assert (
        error.text({"out": "--out", "force": "--force"}) == "--out runs is not empty: give another folder, or --force."
    )


def test_a_number_as_text_is_told_from_a_word():
    with pytest.raises(InputError, match=r"^gamma='0.1' is text: drop the quotes, and give a number above 0.$"):
        check_number("0.1", "gamma", above=0)
    with pytest.raises(InputError, match=r"^gamma='big': give a number above 0.$"):
        check_number("big", "gamma", above=0)


@pytest.mark.parametrize("value", [-1, 0.5, "word", None, Path("a"), ..., lambda: 0])
def test_an_error_reaches_another_process_with_the_same_text(value):
    error = InputError(("a", 1), value, " is c: give b.", other="force")
    found = pickle.loads(pickle.dumps(error))
    assert str(found) == str(error)
    assert (found.path, found.hint, found.other) == (error.path, error.hint, error.other)


def test_about_no_single_argument():
    """As of two that do not go together: there is nothing before the hint."""
    assert str(InputError((), hint="gamma is there twice: give it once.")) == "gamma is there twice: give it once."
