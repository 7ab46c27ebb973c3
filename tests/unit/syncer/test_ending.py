"""The end of a shard's part: one last round a slice, Final, the export (rule 27)."""

from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Wire
from atoll_syncer.model import log
from atoll_syncer.model.effects import Ask, Merge, Reply, Tape, WriteIndex, WritePart
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import KEY, RUN, Side, begun, run_file, side, step_all

STEPS = 20


def at_the_end(*slots: str, **sync: Any) -> tuple[Side, list[int]]:
    """Tick T is reached; every slice has its last round open."""
    one, sessions = begun(*slots, steps=STEPS, quorum=4, **sync)
    step_all(one, sessions, range(1, STEPS + 1))
    one.wait(0.0)
    return one, sessions


def reach(one: Side, sessions: list[int]) -> None:
    """Ticks to T, by what a joiner has seen and another shard confirms."""
    one.hear_tick(STEPS)
    one.join("b-1", tick_seen=STEPS)
    for session in sessions:
        one.report(session, STEPS + 1)


def ended() -> tuple[Side, list[int]]:
    one, sessions = at_the_end("a-0", "a-1")
    reach(one, sessions)
    for fragment in range(2):
        for session in sessions:
            one.offer(session, fragment, 9)
    return one, sessions


def test_at_t_every_slice_gets_one_last_round_without_k_rule_27() -> None:
    one, sessions = at_the_end("a-0", "a-1")
    assert not any(merge.last for merge in one.take(Merge))
    reach(one, sessions)
    assert all(each.last for each in one.state.rounds.open.values())
    assert sorted(one.state.rounds.open) == [0, 1]
    for fragment in range(2):
        for session in sessions:
            one.offer(session, fragment, 9)
    merges = one.take(Merge)
    assert [len(merge.participants) for merge in merges] == [2, 2]
    assert all(merge.last for merge in merges), "their bases are not rounded by the wire"
    assert all(head.last for head in one.state.history.heads.values())


def without_last_offers(**sync: Any) -> Side:
    """A job that has ended, although nobody answered the Calls of its last rounds."""
    one, sessions = at_the_end("a-0", "a-1", **sync)
    reach(one, sessions)
    one.take(Merge)
    for session in sessions:
        one.report(session, STEPS + 2)
    one.wait(1.0)
    assert not one.state.history.ended
    end = one.now + 60
    while one.now < end and not one.state.history.ended:
        one.wait(1.0)
        for session in sessions:
            one.report(session, STEPS + 3 + int(end - one.now))
    assert one.state.history.ended
    return one


def test_a_last_round_closes_at_its_deadline_be_it_with_nothing_rule_27() -> None:
    one = without_last_offers(wire_down=Wire.F32)
    assert one.take(Merge) == []
    assert [head.number for head in one.state.history.heads.values()] == [0, 0]


def test_a_last_round_with_nothing_gives_the_values_in_f32_where_the_wire_rounds_rule_17() -> None:
    one = without_last_offers()
    assert [(each.participants, each.last) for each in one.take(Merge)] == [((), True)] * 2
    heads = one.state.history.heads
    assert [(head.number, head.last) for head in heads.values()] == [(1, True)] * 2
    assert [each.number for each in one.entries if isinstance(each, log.Committed)] == [1, 1]
    reasons = {each.reason for each in one.entries if isinstance(each, log.Committed)}
    assert reasons == {"last round: no offer, the same values in f32"}
    assert one.state.history.merged == {}
    assert {head.merges for head in heads.values()} == {0}, "their momentum holds nothing yet"


def test_a_round_that_is_open_on_a_final_version_becomes_the_last_rule_27() -> None:
    """A shard that starts again may not know at once that the job's tokens are trained."""
    one, sessions = begun("a-0", "a-1", steps=STEPS, quorum=2)
    step_all(one, sessions, range(1, STEPS))
    heads = one.state.history.heads
    assert not one.state.rounds.open[0].last
    heads[0] = replace(heads[0], last=True)
    step_all(one, sessions, range(STEPS, STEPS + 2))
    assert one.state.rounds.open[0].last
    assert one.state.rounds.finished == set()


def test_in_lock_step_no_hand_over_begins_a_round_after_the_end_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=4, overlap=0, lockstep=True, quorum=2)
    for session in sessions:
        one.report(session, 4, waiting=True)
    for fragment in range(2):
        one.offer(sessions[0], fragment, 4, t_m=4)
    one.leave(sessions[1])
    assert len(one.take(Merge)) == 2
    assert one.state.history.ended
    late = one.join("a-1", incarnation=1)
    one.report(late, 4, waiting=True)
    for fragment in range(2):
        one.offer(late, fragment, 2, t_m=4)
    assert one.take(Merge) == []
    assert one.state.rounds.open == {}
    assert [each.record["slot"] for each in one.take(Tape) if each.record["event"] == "late"] == [
        "a-1",
        "a-1",
    ]


def test_then_final_goes_to_every_session_with_the_versions_rule_27() -> None:
    one, sessions = ended()
    finals = dict(one.sent("final"))
    assert set(sessions) <= set(finals)
    numbers = [each.version.number for each in finals[sessions[0]].versions]
    assert numbers == [head.number for _, head in sorted(one.state.history.heads.items())]
    assert len(one.take(WritePart)) == 1


def test_the_end_is_logged_once_however_long_the_disk_takes_rule_27() -> None:
    one, sessions = at_the_end("a-0", "a-1")
    reach(one, sessions)
    one.durable = False
    for fragment in range(2):
        for session in sessions:
            one.offer(session, fragment, 9)
    while not isinstance(one.queue[0], log.Ended):
        one.append(one.queue.pop(0))
    one.wait(2.0)
    step_all(one, sessions, range(STEPS + 2, STEPS + 5))
    assert len(one.queue) == 1
    assert one.sent("final") == []
    one.flush()
    one.wait(2.0)
    assert len([session for session, _ in one.sent("final") if session in sessions]) == 2
    assert len(one.take(WritePart)) == 1


def test_who_joins_after_the_end_hears_final_and_no_round_opens_rule_27() -> None:
    one, sessions = ended()
    one.effects.clear()
    late = one.join("b-0")
    assert [session for session, _ in one.sent("final")] == [late]
    step_all(one, sessions, range(STEPS, 2 * STEPS))
    assert one.state.rounds.open == {}


def test_a_shard_that_restarts_after_its_end_writes_its_part_again_rule_27() -> None:
    one, _ = ended()
    again = side(job=run_file(steps=STEPS), entries=tuple(one.entries)).start()
    assert len(again.take(WritePart)) == 1
    assert again.state.history.ended


def test_only_with_the_index_is_the_job_complete_rule_27() -> None:
    one, _ = ended()
    assert status(one.state, one.now).state == pb.SHARD_FINAL
    one.feed(one.shard.part_written("part-0", "digest"))
    (index,) = one.take(WriteIndex)
    assert index.parts == ((0, "part-0", "digest"),)
    assert status(one.state, one.now).state == pb.SHARD_FINAL
    one.feed(one.shard.exported())
    assert status(one.state, one.now).state == pb.SHARD_COMPLETE
    assert "closed" in [tape.record["event"] for tape in one.take(Tape)]


def test_the_registrar_waits_for_the_part_of_every_shard_rule_27() -> None:
    one = side(job=run_file(shards=2)).start()
    one.feed(one.shard.part_written("part-0", "a"))
    assert one.take(WriteIndex) == []
    request = pb.ReportFinalRequest(shard=1, file="part-1", file_digest="b")
    one.feed(one.shard.registrar_request(3, request, one.now))
    assert len(one.take(WriteIndex)) == 1
    one.feed(one.shard.registrar_request(4, request, one.now))
    assert one.take(WriteIndex) == []
    assert len(one.take(Reply)) == 2


def test_a_part_is_written_again_for_a_registrar_that_lost_it_rule_27() -> None:
    one = side(shard=1, job=run_file(shards=2), entries=(log.RunStarted(run=RUN),)).start()
    one.feed(one.shard.part_written("part-1", "b"))
    for known, parts in ((True, 0), (False, 0)):
        one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY, final=known), one.now))
        assert len(one.take(WritePart)) == parts
    one.feed(one.shard.answered(pb.ReportFinalReply(), one.now))
    for known, parts in ((True, 0), (False, 1), (False, 0)):
        one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY, final=known), one.now))
        assert len(one.take(WritePart)) == parts


def test_another_shard_reports_its_part_rule_27() -> None:
    one = side(shard=1, job=run_file(shards=2), entries=(log.RunStarted(run=RUN),)).start()
    one.feed(one.shard.part_written("part-1", "b"))
    reports = [a.request for a in one.take(Ask) if isinstance(a.request, pb.ReportFinalRequest)]
    assert [(each.file, each.file_digest) for each in reports] == [("part-1", "b")]


def quick_and_slow() -> tuple[Side, int, int]:
    """One of two learners has done the whole job, and the other one no step yet."""
    one, (quick, slow) = begun("a-0", "a-1", steps=STEPS)
    step_all(one, [quick], range(1, STEPS + 2))
    for fragment in range(2):
        one.offer(quick, fragment, STEPS)
    one.effects.clear()
    return one, quick, slow


def test_the_end_waits_for_the_first_work_of_a_learner_that_is_there_rule_27() -> None:
    one, _, slow = quick_and_slow()
    one.wait(5.0)
    assert one.take(Merge) == []
    one.report(slow, 1)
    assert [(to, call.slice) for to, call in one.sent("call")] == [(slow, 0), (slow, 1)]
    for fragment in range(2):
        one.offer(slow, fragment, 1)
    merges = [[part.slot for part in each.participants] for each in one.take(Merge)]
    assert merges == [["a-0", "a-1"], ["a-0", "a-1"]]
    assert one.state.history.ended


def test_one_that_never_makes_a_step_holds_the_end_up_no_longer_than_its_deadline_rule_27() -> None:
    one, _, _ = quick_and_slow()
    one.wait(9.0)
    assert not one.state.history.ended
    one.wait(3.0)
    assert one.state.history.ended
