"""Trainings that go wrong: each ends within the time-out, on every node, with a sentence that names the true cause."""

import re
import signal
import time

import pytest
from nodes import stop

TIMEOUT = 4.0
RAISED = 1  # an exception of the script's own
LOST = 3


def run(forker, folder, way: str, waits_for: tuple[int, ...] = (0, 1), count: int = 2) -> list[tuple[int | None, str]]:
    """Some nodes: the exit code of each and its last words. Those that hang for ever are not waited for."""
    nodes = forker.start(folder, count, "trouble", way, str(folder), str(TIMEOUT))
    began = time.monotonic()
    try:
        codes = [node.finish(60) if rank in waits_for else None for rank, node in enumerate(nodes)]
        assert time.monotonic() - began < TIMEOUT + 30
        return [(code, node.lines[-1] if node.lines else "") for code, node in zip(codes, nodes, strict=True)]
    finally:
        stop(nodes)


# -- what is not finite ----------------------------------------------------------------------------------------------


def test_nan_stops_all_and_the_last_checkpoint_is_good(forker, tmp_path):
    (first, others_words), (second, words) = run(forker, tmp_path, "nan")
    assert (first, second) == (LOST, RAISED)
    assert "NonFiniteError: rank 1, round 2: u is not finite (NaN); nothing of it was sent" in words
    assert "LostNodeError: rank 1 stopped in round 2: NonFiniteError: rank 1, round 2: u is not" in others_words
    assert re.search(r"the checkpoint of round 2 in \S+ is intact", others_words)
    for code, last in run(forker, tmp_path, "after_nan"):
        assert (code, last) == (0, "ended: well")


@pytest.mark.thorough
def test_a_node_that_skips_every_round_stops(forker, tmp_path):
    (first, _), (second, words) = run(forker, tmp_path, "nan_for_ever")
    assert (first, second) == (LOST, RAISED)
    assert "u is not finite (NaN), for 11 rounds in a row" in words


@pytest.mark.thorough
def test_a_message_that_float16_cannot_hold(forker, tmp_path):
    (first, _), (second, words) = run(forker, tmp_path, "float16_overflow")
    assert (first, second) == (LOST, RAISED)
    assert "more than float16 can hold" in words


# -- unequal stepsizes -----------------------------------------------------------------------------------------------


UNEQUAL = {
    "another_lr": r"0 sum up to 0\.[24] at rank \d and to 0\.[24] at rank \d, .*: LED needs the same sum .* use STGT",
    "a_round_ended_early": r"3 sum up to 0\.2 at rank 0 and to 0\.1 at rank 1, .*: ProxSkip needs the same sum ",
    "another_lr_early": r"0 sum up to 0\.2 at rank 0 and to 0\.4 at rank 1, .*: early=True requires the same sum ",
}


@pytest.mark.parametrize("way", UNEQUAL)
def test_stepsizes_that_the_nodes_do_not_share(forker, tmp_path, way):
    """Σ_i c_i = 0 needs one divisor for all. Of four nodes on a ring one does not hear rank 1; a mean has an owner."""
    for code, words in run(forker, tmp_path, way, waits_for=(0, 1, 2, 3), count=4):
        assert code in (RAISED, LOST)
        assert re.search("the stepsizes of round " + UNEQUAL[way], words), words


# -- calls that not all nodes make -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["evaluate", "metrics", "save"])
@pytest.mark.sampled(3)
def test_a_call_of_rank_0_alone_is_named_as_that_mistake(forker, tmp_path, call):
    began = time.monotonic()
    for code, words in run(forker, tmp_path, f"only_{call}"):
        assert code == LOST
        assert re.search(
            rf"rank 0 waits in {call}\(\) \(trouble\.py:\d+\).* {call}\(\) must be called by all nodes at the same "
            r"point, not by rank 0 alone",
            words,
        )
        assert re.search(r"rank 1 waits in the exchange of round 1 \(trouble\.py:\d+\)", words)
    assert time.monotonic() - began < 30


@pytest.mark.thorough
def test_a_call_that_the_others_have_left_behind(forker, tmp_path):
    (first, words), (second, _) = run(forker, tmp_path, "only_averaged")
    assert (first, second) == (LOST, 0)
    assert "rank 1 was lost: it ended its training in round 2" in words
    assert "averaged() must be called by all nodes" in words


@pytest.mark.thorough
def test_an_optimiser_that_only_one_node_makes(forker, tmp_path):
    (code, words), _ = run(forker, tmp_path, "only_made", waits_for=(0,))
    assert code == LOST
    assert re.search(r"rank 1 was lost: it has made no progress for 4 s; it was last seen at trouble\.py:\d+", words)


@pytest.mark.thorough
def test_different_calls(forker, tmp_path):
    (first, words), (second, _) = run(forker, tmp_path, "other_calls")
    assert (first, second) == (LOST, LOST)
    assert "rank 0 has called metrics() where rank 1 has called evaluate()" in words


def test_unequal_loaders(forker, tmp_path):
    for code, words in run(forker, tmp_path, "unequal_loaders"):
        assert code == LOST
        assert "rank 0 waits in evaluate()" in words
        assert "rank 1 waits in the exchange of round 2" in words
        assert "with loaders of unequal lengths, loop over opt.batches(loader)" in words


# -- torch's own collectives -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_collective_of_the_users_own_while_another_node_hangs(forker, tmp_path):
    (code, words), _ = run(forker, tmp_path, "barrier_while_one_hangs", waits_for=(0,))
    assert code == RAISED  # the barrier's own error, and under it:
    assert re.search(r"rank 1 was lost: it has made no progress for 4 s; it was last seen at trouble\.py:\d+", words)


@pytest.mark.thorough
def test_a_collective_of_one_node_alone(forker, tmp_path):
    (first, words), (second, _) = run(forker, tmp_path, "barrier_on_one")
    assert (first, second) == (LOST, RAISED)
    assert "rank 1 waits in torch.distributed.barrier() (trouble.py:" in words


@pytest.mark.thorough
def test_a_call_after_a_loss_does_not_wait(forker, tmp_path):
    (code, words), (killed, _) = run(forker, tmp_path, "again_after_a_loss")
    assert (code, killed) == (LOST, -signal.SIGKILL)
    assert "rank 1 was lost" in words


def test_a_node_that_is_killed_while_a_sum_is_taken(forker, tmp_path):
    (code, words), (killed, _) = run(forker, tmp_path, "killed_in_a_sum")
    assert (code, killed) == (LOST, -signal.SIGKILL)
    assert "LostNodeError: rank 1 was lost: its connection was closed" in words


# -- one node's own errors -------------------------------------------------------------------------------------------


def test_an_error_of_memory_is_no_lost_node(forker, tmp_path):
    (first, others_words), (second, words) = run(forker, tmp_path, "no_memory")
    assert (first, second) == (LOST, RAISED)
    assert "RuntimeError" in words
    assert "can't allocate memory" in words
    assert re.search(r"rank 1 stopped in round 1: RuntimeError: .*can't allocate memory", others_words)
    assert "checkpoint" not in others_words  # there is none


def test_an_exception_in_the_users_loop(forker, tmp_path):
    (first, others_words), (second, words) = run(forker, tmp_path, "own_error")
    assert (first, second) == (LOST, RAISED)
    assert "KeyError: 'label 7 has no image'" in words
    assert "rank 1 stopped in round 1: KeyError: 'label 7 has no image'" in others_words
    assert re.search(r"the checkpoint of round 1 in \S+ is intact", others_words)


def test_a_full_disk(forker, tmp_path):
    for code, words in run(forker, tmp_path, "full_disk"):
        assert code == RAISED
        assert re.search(r"rank 1: the checkpoint folder .* cannot be written \(.*File too large", words)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("foreign_killed", "rank 1 was lost: its connection was closed"),
        ("foreign_fails", "rank 1 stopped in round 1: KeyError: 'label 7 has no image'"),
        ("foreign_hangs", "rank 1 was lost: it has made no progress for 4 s; it was last seen at trouble.py"),
    ],
)
@pytest.mark.sampled(3)
def test_a_process_group_of_another_library(forker, tmp_path, way, words):
    (code, found), _ = run(forker, tmp_path, way, waits_for=(0,))
    assert code == LOST
    assert words in found


# -- nothing wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["slow_end", "foreign_slow_end", "back_to_a_checkpoint"])
def test_nobody_is_lost(forker, tmp_path, way):
    for code, words in run(forker, tmp_path, way):
        assert (code, words) == (0, "ended: well")


# -- two optimisers --------------------------------------------------------------------------------------------------


def test_two_optimisers_do_not_hear_each_other(forker, tmp_path):
    for code, words in run(forker, tmp_path, "two_in_order"):
        assert (code, words) == (0, "ended: well")
    for code, words in run(forker, tmp_path, "two_out_of_order"):
        assert code == LOST
        assert "the rounds of several optimisers must end in the same order on all nodes" in words
