"""What the Status call tells, at every stage of a shard."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import Expected
from atoll_protos.run import Region
from atoll_syncer.model import log
from atoll_syncer.rules.status import TROUBLE_LETTERS_MAX, status
from unit.syncer.shard_side import RUN, begun, side


@pytest.mark.parametrize(
    ("entries", "state"), [((), pb.SHARD_STARTING), ((log.RunStarted(run=RUN),), pb.SHARD_SEEDING)]
)
def test_a_young_shard_says_what_it_waits_for(
    entries: tuple[log.Entry, ...], state: pb.ShardState
) -> None:
    one = side(fresh=False, entries=entries).start()
    said = status(one.state, one.now)
    assert said.state == state
    assert said.reason


def test_a_shard_says_how_many_learners_the_manifest_of_its_cluster_has_now() -> None:
    regions = (Region(name="a", learners=2), Region(name="b", learners=1))
    one = side(expected=Expected(regions=regions)).start()
    assert dict(status(one.state, one.now).learners) == {"a": 2, "b": 1}
    one.feed(one.shard.expected_heard(Expected(regions=regions[:1]), one.now))
    assert dict(status(one.state, one.now).learners) == {"a": 2}


def test_a_shard_that_is_not_marked_yet_waits_for_the_registrar() -> None:
    before, _ = begun("a-0")
    entries = tuple(e for e in before.entries if not isinstance(e, log.Begun))
    one = side(entries=entries)
    one.durable = False
    one.start()
    one.append(one.queue.pop(0))
    assert isinstance(one.queue[0], log.Begun)
    assert status(one.state, one.now).reason == "waits for the registrar"


def test_each_slot_says_state_incarnation_owner_and_how_long_it_was_silent() -> None:
    one, sessions = begun("a-0", "a-1")
    one.report(sessions[0], 3, tokens=30, loss=2.5, finished=True)
    request = pb.SetOwnerRequest(slot="a-1", uid="a-1-uid", word=0)
    one.feed(one.shard.registrar_request(1, request, one.now))
    one.leave(sessions[1])
    one.now += 1.5
    said = status(one.state, one.now)
    first, second = said.slots
    assert (first.slot, first.state, first.incarnation) == ("a-0", pb.SLOT_TRAINING, 1)
    assert (first.t_m, first.tokens, first.loss, first.finished) == (3, 30, 2.5, True)
    assert first.seconds_since_report == 1.5
    assert (second.state, second.owner_uid, second.owner_word) == (pb.SLOT_LOST, "a-1-uid", 1)
    assert (said.state, said.live, said.quorum, said.registrar) == (pb.SHARD_SERVING, 1, 1, True)
    assert (said.run, said.epoch, said.steps) == (RUN, 1, 100)


def test_an_evaluation_is_said_once_there_is_one() -> None:
    one, _ = begun("a-0")
    assert not status(one.state, one.now).HasField("evaluation")
    observer = one.join("", instance="eye", observer=True)
    message = pb.ToShard(evaluation=pb.Evaluation(tick=50, loss=1.25))
    one.feed(one.shard.message(observer, message, one.now))
    assert status(one.state, one.now).evaluation.loss == 1.25


def test_a_slot_that_left_says_its_reason_rule_6() -> None:
    one, (session,) = begun("a-0")
    message = pb.ToShard(leave=pb.Leave(reason="SIGTERM"))
    one.feed(one.shard.message(session, message, one.now))
    (slot,) = status(one.state, one.now).slots
    assert (slot.state, slot.reason) == (pb.SLOT_TRAINING, "")  # nothing of it was refused
    one.leave(session)
    (slot,) = status(one.state, one.now).slots
    assert (slot.state, slot.reason) == (pb.SLOT_LEFT, "SIGTERM")


def test_tokens_of_a_slot_are_those_of_all_its_incarnations() -> None:
    one, (session,) = begun("a-0")
    one.report(session, 3, tokens=30)
    one.leave(session)
    one.report(one.join("a-0", instance="next"), 1, tokens=5)
    assert status(one.state, one.now).slots[0].tokens == 35


def test_a_slot_says_why_its_learner_could_not_join_anew_also_after_its_session() -> None:
    one, (session,) = begun("a-0")
    one.report(session, 3, trouble="tls.crt: expired\nat noon" + "!" * 1000)
    (slot,) = status(one.state, one.now).slots
    assert slot.trouble.startswith("tls.crt: expired at noon!")
    assert len(slot.trouble) <= TROUBLE_LETTERS_MAX
    one.leave(session)
    (slot,) = status(one.state, one.now).slots
    assert (slot.state, slot.trouble[:8]) == (pb.SLOT_LOST, "tls.crt:")
    one.join("a-0", instance="again")
    assert status(one.state, one.now).slots[0].trouble == ""


def test_late_work_is_a_share_of_what_the_present_processes_have_trained() -> None:
    """Both counts are those of one report, so a shard that starts again divides like by like."""
    one, sessions = begun("a-0", "a-1")
    assert status(one.state, one.now).late_share == 0.0
    one.report(sessions[0], 3, tokens=300, late=30)
    one.report(sessions[1], 3, tokens=100, late=90)
    said = status(one.state, one.now)
    assert [slot.late_share for slot in said.slots] == [0.1, 0.9]
    assert said.late_share == 0.3
