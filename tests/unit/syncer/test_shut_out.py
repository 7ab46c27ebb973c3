"""Who is shut out of a job: slots and regions that its list has not any more (rule 41)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import NOBODY, Expected, Limit
from atoll_protos.run import Region
from atoll_syncer.model import log
from atoll_syncer.model.effects import Drop
from atoll_syncer.model.roster import Certificate
from atoll_syncer.rules.shut_out import GRACE_SECONDS
from unit.syncer.shard_side import Side, begun, side, step_all


def listed(**learners: int) -> Expected:
    return Expected(regions=tuple(Region(name=n, learners=c) for n, c in learners.items()))


def trained(*slots: str) -> tuple[Side, list[int]]:
    """These learners train, with a list of regions a and b of two learners each."""
    one, sessions = begun(*slots)
    hear(one, listed(a=2, b=2))
    return one, sessions


def hear(one: Side, expected: Expected) -> None:
    one.feed(one.shard.expected_heard(expected, one.now))


def wait(one: Side, sessions: list[int], seconds: float) -> None:
    """Time in which these learners say that they are alive."""
    for _ in range(int(seconds)):
        for session in sessions:
            one.report(session, 0)
        one.wait(1.0)


def test_the_session_of_a_region_that_has_left_ends_after_the_grace_rule_41() -> None:
    one, sessions = trained("a-0", "b-0", "b-1")
    hear(one, listed(a=2))
    wait(one, sessions, GRACE_SECONDS - 2.0)
    assert one.ends() == []
    wait(one, sessions, 4.0)
    ends = one.ends()
    assert [(end.code, end.retry) for end in ends] == [(pb.UNKNOWN_SLOT, True)] * 2
    assert "b-0 is shut out: the manifest in the syncer's cluster has no region b" in ends[0].reason
    assert set(one.state.sessions.open) == {sessions[0]}
    assert one.state.sessions.slots["b-0"].state(one.now) == pb.SLOT_LEFT


def test_who_is_shut_out_is_refused_until_a_list_has_it_rule_41() -> None:
    one, sessions = trained("a-0", "b-0")
    hear(one, listed(a=2))
    wait(one, sessions, GRACE_SECONDS + 2.0)
    one.effects.clear()
    one.join("b-0")
    one.join("b-7")  # a slot that the region never had
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.UNKNOWN_SLOT, True)] * 2
    hear(one, listed(a=2, b=1))
    back = one.join("b-0")
    assert [session for session, _ in one.sent("welcome")] == [back]


def test_a_slot_beyond_learners_is_shut_out_and_the_others_of_its_region_stay_rule_41() -> None:
    one, sessions = trained("b-0", "b-1")
    hear(one, listed(a=2, b=1))
    wait(one, sessions, GRACE_SECONDS + 2.0)
    (end,) = one.ends()
    assert "b-1 is shut out: the manifest in the syncer's cluster has 1 learners" in end.reason
    assert set(one.state.sessions.open) == {sessions[0]}


def test_a_list_that_has_the_slot_again_in_time_ends_nothing_rule_41() -> None:
    one, sessions = trained("a-0", "b-0")
    hear(one, listed(a=2))
    wait(one, sessions, GRACE_SECONDS / 2)
    hear(one, listed(a=2, b=2))
    wait(one, sessions, GRACE_SECONDS)
    assert one.ends() == []


def test_a_learner_may_come_before_the_list_that_has_it_rule_41() -> None:
    one, sessions = trained("a-0")
    early = one.join("a-2")
    assert [session for session, _ in one.sent("welcome")] == [early]
    wait(one, [*sessions, early], GRACE_SECONDS / 2)
    hear(one, listed(a=3, b=2))
    wait(one, [*sessions, early], GRACE_SECONDS)
    assert one.ends() == []


def test_a_learner_that_no_list_ever_has_is_shut_out_whatever_its_number_rule_41() -> None:
    one, sessions = trained("a-0")
    guest = one.join("c-0")
    wait(one, [*sessions, guest], GRACE_SECONDS + 2.0)
    assert len(one.ends()) == 1
    one.join("c-1")
    assert [end.code for end in one.ends()] == [pb.UNKNOWN_SLOT]


def test_what_has_been_offered_leaves_the_round_with_its_slot_rule_41() -> None:
    one, sessions = begun("a-0", "b-0", quorum=2)
    hear(one, listed(a=2, b=2))
    step_all(one, sessions, range(1, 9))
    hear(one, listed(a=2))
    called = {(session, call.slice) for session, call in one.sent("call")}
    fragment = next(fragment for session, fragment in sorted(called) if session == sessions[1])
    one.offer(sessions[1], fragment, 8)
    assert "b-0" in one.state.rounds.open[fragment].complete
    one.leave(sessions[1])  # an offer outlives its session
    wait(one, sessions[:1], GRACE_SECONDS + 2.0)
    assert [drop.slot for drop in one.take(Drop)] == ["b-0"]
    assert "b-0" not in one.state.rounds.open[fragment].complete


def test_a_process_that_starts_gives_no_grace_to_who_has_left_before_rule_41() -> None:
    taken = log.Taken(slot="b-0", incarnation=1, uid="uid", instance="b-0-process")
    again = side(entries=(log.RunStarted(run="run-new"), taken), expected=listed(a=2)).start()
    again.join("b-0")
    again.join("b-7")
    assert [end.code for end in again.ends()] == [pb.UNKNOWN_SLOT] * 2
    fewer = side(entries=(log.RunStarted(run="run-new"), taken), expected=listed(b=0)).start()
    fewer.join("b-0")
    assert [end.code for end in fewer.ends()] == [pb.UNKNOWN_SLOT]


def test_who_is_shut_out_names_no_run_rule_41() -> None:
    taken = log.Taken(slot="b-0", incarnation=1, uid="uid", instance="b-0-process")
    one = side(entries=(taken,), fresh=False, expected=listed(a=2)).start()
    one.join("b-0", run="run-of-theirs")
    assert one.state.run.named == {}


def test_without_a_list_every_slot_may_join_rule_41() -> None:
    one, sessions = begun("a-0", "z-9")
    hear(one, NOBODY)
    wait(one, sessions, GRACE_SECONDS + 2.0)
    assert one.ends() == []


# ---------------------------------------------------------------- certificates


def revoked(generation: int) -> Expected:
    limits = (Limit(region="b", generation=generation),)
    return Expected(regions=listed(a=2, b=2).regions, limits=limits)


def of_b(generation: int) -> Certificate:
    return Certificate(region="b", generation=generation)


def test_a_session_ends_when_its_certificate_has_expired_rule_41() -> None:
    one, sessions = begun("a-0")
    brief = one.join("b-0", certificate=Certificate(region="b", until=one.now + 10.0))
    observer = one.join("", observer=True, certificate=Certificate(until=one.now + 10.0))
    wait(one, [*sessions, brief], 9.0)
    assert one.ends() == []
    wait(one, sessions, 2.0)
    ends = one.ends()
    assert [(end.code, end.retry) for end in ends] == [(pb.NOT_ALLOWED, True)] * 2
    assert "has expired" in ends[0].reason
    assert set(one.state.sessions.open) == {*sessions}
    renewed = one.join("b-0", certificate=Certificate(region="b", until=one.now + 1000.0))
    observer = one.join("", observer=True, certificate=Certificate(until=one.now + 1000.0))
    assert {renewed, observer} <= {session for session, _ in one.sent("welcome")}


def test_a_revocation_ends_the_sessions_of_older_certificates_at_once_rule_41() -> None:
    one, sessions = begun("a-0")
    old, new = (one.join(f"b-{n}", certificate=of_b(n)) for n in (0, 1))
    operator = one.join("", observer=True, certificate=of_b(0))
    hear(one, revoked(1))
    ends = one.ends()
    assert [(end.code, end.retry) for end in ends] == [(pb.NOT_ALLOWED, True)] * 2
    assert "the certificates of region b have been revoked" in ends[0].reason
    assert {old, operator}.isdisjoint(one.state.sessions.open)
    assert {*sessions, new} == set(one.state.sessions.open)
    one.join("b-0", certificate=of_b(0))
    assert [end.code for end in one.ends()] == [pb.NOT_ALLOWED]
    back = one.join("b-0", certificate=of_b(1))
    assert back in one.state.sessions.open


def test_what_revoked_learners_have_offered_leaves_the_rounds_rule_41() -> None:
    one, sessions = begun("a-0", "b-0", quorum=2)
    hear(one, listed(a=2, b=2))
    step_all(one, sessions, range(1, 9))
    called = {(session, call.slice) for session, call in one.sent("call")}
    fragment = next(fragment for session, fragment in sorted(called) if session == sessions[1])
    one.offer(sessions[1], fragment, 8)
    one.leave(sessions[1])
    hear(one, revoked(1))
    assert [drop.slot for drop in one.take(Drop)] == ["b-0"]


def test_a_join_that_came_before_the_run_keeps_its_certificate_rule_41() -> None:
    one = side(fresh=False).start()
    session = one.join("b-0", certificate=of_b(0))
    one.wait(31.0)
    assert session in one.state.sessions.open
    hear(one, revoked(1))
    assert [end.code for end in one.ends()] == [pb.NOT_ALLOWED]
