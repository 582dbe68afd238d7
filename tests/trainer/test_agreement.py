"""What nodes make of the lighthouse's answers: a change of members begins at all of them, or at none."""

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from stgt.torch.keeper import AGREEMENT, Answer, Keeper, Record, agree

MEMBERS = ("a", "b", "c")
MEMBER = Record(state="member", run=1, epoch=4, members=MEMBERS, round=10, address="host:1")
NEWCOMER = Record(state="ready", run=1, round=9, address="host:2")


def answers(records, stamp, known=None, least=2):
    """The answer in which all propose what follows from these records; `known` is what they remember."""
    proposal = agree(records, stamp, least).proposal
    known = known or {}
    return agree(
        {who: replace(one, proposal=proposal, planned=known.get(who, "")) for who, one in records.items()}, stamp, least
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


# -- who goes on where the members are parted ------------------------------------------------------------------------


@given(nodes=st.integers(2, 9), data=st.data())
def test_of_two_parts_of_a_network_at_most_one_goes_on(nodes, data):
    """Both parts have a lighthouse, and they are parted in any way: exactly one of them has a plan."""
    last = tuple(sorted(data.draw(st.sets(st.text("abcdef", min_size=1), min_size=nodes, max_size=nodes))))
    here = data.draw(st.sets(st.sampled_from(last)))
    member = replace(MEMBER, members=last)
    parts = [dict.fromkeys(part, member) for part in (here, set(last) - here) if part]
    going_on = [answers(part, "1", least=1).plan for part in parts if len(part) < nodes]
    assert sum(plan is not None for plan in going_on) == (len(parts) == 2)


@given(nodes=st.integers(2, 7), epochs=st.lists(st.integers(1, 3), min_size=7, max_size=7), data=st.data())
def test_what_is_agreed_on_has_only_those_that_are_there_and_a_majority(nodes, epochs, data):
    """Whatever each node's record is: a plan's members have asked, and hold more than half of the latest members."""
    everybody = [f"n{k}" for k in range(nodes)]
    records = {}
    for who, epoch in zip(everybody, epochs, strict=False):
        state = data.draw(st.sampled_from(["member", "member", "ready", "joining"]))
        members = tuple(sorted({who, *data.draw(st.sets(st.sampled_from(everybody)))}))
        records[who] = Record(
            state=state,
            run=1,
            epoch=epoch if state == "member" else 0,
            members=members if state == "member" else (),
            broken=data.draw(st.booleans()),
            leaving=data.draw(st.sampled_from(["", "", "", "SIGTERM"])),
            address="host:1",
        )
    members = {who: one for who, one in records.items() if one.state == "member"}
    plan = answers(records, "1").plan
    if plan is None or not members:
        return
    latest = max(members.values(), key=lambda one: one.epoch)
    assert set(plan.members) <= {who for who, one in records.items() if one.state != "joining" and not one.leaving}
    assert plan.epoch == latest.epoch + 1
    expected = [who for who in latest.members if not (who in members and members[who].leaving)]
    there = [who for who in expected if who in members]
    assert 2 * len(there) >= len(expected)
    assert not set(plan.lost) & set(records)


def test_those_that_have_left_in_order_do_not_count_for_a_majority():
    """Of five one is left after four have said goodbye, and goes on; had they been lost, it would wait."""
    last = ("a", "b", "c", "d", "e")
    alone = replace(MEMBER, members=last)
    assert answers({"e": alone}, "1", least=1).plan is None
    assert "not more than half" in agree({"e": alone}, "1", 1).why
    reasons = {"a": "SIGTERM", "b": "SIGTERM", "c": "its training is over", "d": "SIGTERM"}
    plan = answers({"e": replace(alone, gone=reasons)}, "1", least=1).plan
    assert plan.members == ("e",)
    assert plan.lost == ()
    assert plan.left == reasons  # though none of them asks any more


def test_fewer_than_min_nodes_wait_until_they_give_up():
    records = dict.fromkeys(("a", "b"), MEMBER)
    answer = agree(records, "1", 3)
    assert answer.plan is None
    assert answer.too_few
    assert answers(dict.fromkeys(("a", "b"), replace(MEMBER, stopping=True)), "1", least=3).plan.members == ("a", "b")


def test_a_record_without_the_secret_is_left_out(caplog):
    """So is one that is no record at all."""
    own, other = (Keeper([], name, secret, 2, lambda: None, print) for name, secret in (("a", "key"), ("b", "guess")))
    good, bad = own._signed(MEMBER), other._signed(MEMBER)
    asked = [SimpleNamespace(replica_id=who, data=data) for who, data in (
        ("a", {"record": good}), ("b", {"record": bad}), ("c", {"record": good}), ("d", None), ("e", {"record": "[1]"}),
        ("f", {}),
    )]  # fmt: skip
    assert own._verified(asked) == {"a": MEMBER}
    assert len(caplog.messages) == 5
