"""What nodes make of the lighthouse's answers: a change of members begins at all of them, or at none."""

from dataclasses import replace

from stgt.torch.keeper import AGREEMENT, Answer, Record, agree

MEMBERS = ("a", "b", "c")
MEMBER = Record(state="member", run=1, epoch=4, members=MEMBERS, round=10, address="host:1")
NEWCOMER = Record(state="ready", run=1, round=9, address="host:2")


def answers(records, stamp, known=None):
    """The answer in which all propose what follows from these records; `known` is what they know of earlier ones."""
    proposal = agree(records, stamp, 2).proposal
    known = known or {}
    return agree(
        {who: replace(one, proposal=proposal, planned=known.get(who, "")) for who, one in records.items()}, stamp, 2
    )


def test_all_is_well():
    assert agree(dict.fromkeys(MEMBERS, MEMBER), "1", 2) == Answer()


def test_a_change_takes_two_answers():
    records = dict.fromkeys(MEMBERS, MEMBER) | {"d": NEWCOMER}
    first = agree(records, "1", 2)
    assert first.proposal
    assert first.plan is None
    plan = answers(records, "2").plan
    assert plan.members == (*MEMBERS, "d")
    assert plan.joined == ("d",)
    assert plan.round > MEMBER.round


def test_a_change_that_all_know_keeps_its_round():
    records = dict.fromkeys(MEMBERS, MEMBER) | {"d": NEWCOMER}
    plan = answers(records, "2").plan
    later = {who: replace(one, round=11) for who, one in records.items()}
    assert answers(later, "3", dict.fromkeys(records, plan.key)).plan is None


def test_a_change_that_one_has_dropped_is_made_anew_by_all():
    """As with a newcomer that missed an answer: the members take it to be gone, it waits for them."""
    records = dict.fromkeys(MEMBERS, MEMBER) | {"d": NEWCOMER}
    plan = answers(records, "2").plan
    assert agree(dict.fromkeys(MEMBERS, replace(MEMBER, planned=plan.key)), "3", 2).proposal == ""
    anew = answers(records, "4", {"d": plan.key}).plan
    assert anew.members == plan.members
    assert anew.key != plan.key


def test_one_whom_the_others_went_on_without_comes_back_when_it_is_out_of_its_old_group():
    """Else all would wait for one that hangs there."""
    silent = replace(MEMBER, epoch=3, members=(*MEMBERS, "d"), waiting="the exchange of round 9")
    assert agree(dict.fromkeys(MEMBERS, MEMBER) | {"d": silent}, "1", 2) == Answer()
    back = dict.fromkeys(MEMBERS, MEMBER) | {"d": replace(silent, waiting=AGREEMENT)}
    assert answers(back, "2").plan.members == (*MEMBERS, "d")
