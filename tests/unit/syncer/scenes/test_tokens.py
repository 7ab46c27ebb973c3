"""What a shard counts as trained, over restarts, instances, losses and the end (rule 35)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Expected, Limit
from atoll_protos.job.schedule import Length
from atoll_syncer.model import log
from atoll_syncer.rules import offers as records
from unit.syncer.fixtures import Play, lineage, listed


def test_restart_keeps_what_was_trained_up_to_last_version_whoever_is_in_it(play: Play) -> None:
    play("counted 400 1000")
    assert play.newest[1].tokens == play.state.sessions.tokens == 1400
    play("restart; see state.sessions.tokens 1400")


def test_the_next_instance_adds_to_what_all_before_it_have_trained(play: Play) -> None:
    play("counted 400 1000; restart; join b-0 second; see history.taken.b-0.incarnation 2")
    play("report b-0 1 tokens=70; restart; join b-0 third")
    play("see history.taken.b-0.incarnation 3; report b-0 1 tokens=5")
    # the 70 are in no entry: they are below one round
    assert play.state.sessions.tokens == 1400 + 5
    play("restart; see state.sessions.tokens 1400")


def test_an_entry_names_only_slots_whose_counts_the_log_does_not_have(play: Play) -> None:
    play("counted 400 1000; see newest.1.trained only a-0 b-0; goes_on a-0 500")
    assert play.newest[0].trained == {
        "a-0": log.Trained(incarnation=1, now=500, said=500, settled=log.Settled(merged=50))
    }
    play("restart; see state.sessions.tokens 1500")


def test_version_that_is_on_its_way_while_slot_is_taken_does_not_count_for_its_successor(
    play: Play,
) -> None:
    # Its entry names what the one before has trained, and comes after the successor's.
    play("counted 400 1000; leave b-0; slow_disk; goes_on a-0 500")
    late = play.one.queue.pop()
    play("see one.queue []; join b-0 second")
    play.one.queue.append(late)
    play("flush")
    assert play.history.trained["b-0"] == log.Trained(incarnation=2, before=1000)
    play("report b-0 1 tokens=30")
    assert play.state.sessions.tokens == 500 + 1030


def test_what_is_above_a_regions_limit_stays_uncounted_over_a_restart_rule_41(play: Play) -> None:
    # The learner says its total again; only what it adds to that counts, up to the limit.
    play("begun b-0")
    limits = Expected(regions=listed(b=2).regions, limits=(Limit(region="b", tokens_per_step=12),))
    play.read_list(limits)
    for t in range(1, 6):
        play.later(1)
        play.report("b-0", t, tokens=200 * t)
    play("offer b-0 1 5; wait 10.0; see state.sessions.tokens 60; restart")
    play.read_list(limits)
    play("join b-0 run=RUN incarnation=1; report b-0 6 tokens=1010")
    play("see state.sessions.tokens 70")


def test_shard_that_is_told_to_stop_writes_what_its_learners_have_reported_since(
    play: Play,
) -> None:
    play("counted 400 1000")
    assert play.one.shard.stopping() == []
    play("report a-0 5 tokens=500; leave a-0; clear")
    play.one.feed(play.one.shard.stopping())
    play("effect Append 1")
    assert play.found[0].entry.trained == {
        "a-0": log.Trained(incarnation=1, now=500, said=500, settled=log.Settled(merged=50))
    }
    assert play.one.shard.stopping() == []
    play("restart; see state.sessions.tokens 1500")


def test_a_process_whose_term_is_not_durable_writes_nothing_when_it_stops(play: Play) -> None:
    play("counted 400 1000; report a-0 5 tokens=500")
    play.state.term.durable = False
    assert play.one.shard.stopping() == []


def test_shard_without_its_log_learns_tokens_of_all_slots_from_learner_rule_22(play: Play) -> None:
    play("empty a-0; holder a-0 9 8 incarnation=2; report a-0 9 tokens=230")
    play("see state.sessions.tokens 230; wait 1.0")
    mine = lineage(
        "a-0", incarnation=1, trained=pb.Trained(incarnation=2, before=1000, now=200, said=200)
    )
    other = lineage(
        "b-0", incarnation=1, trained=pb.Trained(incarnation=4, before=500, now=7, said=7)
    )
    play("asked a-0:0:9")
    play.held("a-0", 0, 9, lineage=[mine, other])
    play("wait 1.0; asked a-0:1:8")
    play.held("a-0", 1, 8, lineage=[mine])
    play("wait 1.0; see state.serving")
    assert play.state.sessions.tokens == 1230 + 507
    play("see slots.a-0.tokens 1230; see slots.a-0.tokens_here 230")
    # what it had heard itself is written, too
    play("restart shard=1")
    assert play.state.sessions.tokens == 1230 + 507


def test_process_that_joins_shard_without_its_log_counts_once_though_version_names_its_tokens(
    play: Play,
) -> None:
    play("empty a-0; holder a-0 9 8 incarnation=2; report a-0 9 tokens=230; wait 1.0")
    other = lineage(
        "b-0", incarnation=4, trained=pb.Trained(incarnation=4, before=500, now=7, said=7)
    )
    play("asked a-0:0:9")
    play.held("a-0", 0, 9, lineage=[other])
    play("wait 1.0; asked a-0:1:8; held a-0 1 8; wait 1.0; join b-0 run=RUN incarnation=4")
    play("see history.taken.b-0.incarnation 4; report b-0 3 tokens=9")
    play("see slots.b-0.tokens 509")


def test_a_publish_tells_learners_what_all_slots_have_trained(play: Play) -> None:
    play("counted 400 1000")
    assert [(e.slot, e.trained.now) for e in play.publish("b-0", 1).lineage] == [("a-0", 400)]


def test_a_lineage_with_impossible_tokens_is_refused_rule_38(play: Play) -> None:
    play("empty a-0; holder a-0 9 8; wait 1.0; clear")
    play.held("a-0", 0, 9, lineage=[lineage("a-0", incarnation=1, trained=pb.Trained(now=2**53))])
    play("ends BAD_TRANSFER")
    wrong = pb.Trained(settled_before=pb.Settled(late=2**53))
    play("empty a-0; holder a-0 9 8; wait 1.0; clear")
    play.held("a-0", 0, 9, lineage=[lineage("a-0", incarnation=1, trained=wrong)])
    play("ends BAD_TRANSFER")


def test_a_report_with_impossible_counts_is_refused_rule_38(play: Play) -> None:
    play("begun a-0")
    play.report("a-0", 1, settled=pb.Settled(overlap=2**53))
    play("ends BAD_MESSAGE")


def test_status_and_the_tape_say_the_same_number_also_after_a_restart(play: Play) -> None:
    play("counted 400 1000; tape commit 1")
    assert play.lines[0]["tokens"] == play.shown.trained == 1400
    assert [
        records.commit_again(play.state, e)["tokens"]
        for e in play.one.entries
        if isinstance(e, log.Committed)
    ] == [1400]
    play("restart; see shown.trained 1400")


def test_a_job_in_tokens_ends_when_they_are_trained_whichever_process_counts(play: Play) -> None:
    play("counted 400 1000; restart")
    play.state.ending.length = Length(tokens=1400)
    play("see state.over")
    play.state.ending.length = Length(tokens=1401)
    play("see not state.over")


def test_what_became_of_tokens_of_every_slice_is_shown_and_restart_keeps_it_rule_13(
    play: Play,
) -> None:
    # a-0 has trained 400 tokens on two slices; 50 of one are merged. b-0 has none in a version.
    play("counted 400 1000")
    both = 2 * 1400
    assert play.shown.counts == pb.Tokens(trained=both, merged=50, pending=both - 50, slices=2)
    play("see shown.merges 1; see shown.merged_offers 1")
    play.report("a-0", 6, tokens=480, settled=pb.Settled(overlap=350, late=7))
    assert play.shown.counts == pb.Tokens(
        trained=both + 160, merged=50, overlap=350, late=7, pending=both + 160 - 407, slices=2
    )
    play("goes_on a-0 500; see shown.counts.merged 160; see shown.counts.overlap 350; restart")
    play("join a-0 run=RUN incarnation=1; join b-0 run=RUN incarnation=1")
    assert play.shown.counts == pb.Tokens(
        trained=2 * 1500, merged=160, overlap=350, late=7, pending=3000 - 517, slices=2
    )
    play("see shown.merges 2; see shown.merged_offers 2")


def test_what_process_leaves_unsettled_is_lost_with_it_and_pending_again_when_it_comes_back(
    play: Play,
) -> None:
    play("counted 400 1000")
    rest = play.shown.counts.pending
    play("leave b-0")
    assert (play.shown.counts.lost, play.shown.counts.pending) == (2000, rest - 2000)
    play("join b-0 run=RUN incarnation=1")
    assert (play.shown.counts.lost, play.shown.counts.pending) == (0, rest)
    play("leave b-0; join b-0 second")
    assert (play.shown.counts.lost, play.shown.counts.pending) == (2000, rest - 2000)
    play.report("b-0", 1, tokens=30, settled=pb.Settled(late=3))
    play("see shown.counts.lost 2000; see shown.counts.late 3; restart")
    # the 30 are in no entry
    assert (play.shown.counts.lost, play.shown.counts.trained) == (2000 + 750, 2800)


def test_offer_of_process_that_is_gone_is_merged_and_not_lost_in_version_after_its_successor(
    play: Play,
) -> None:
    play("counted 400 1000; goes_on a-0 500; see shown.counts.merged 160; leave a-0")
    before = play.shown.counts.lost
    play("join a-0 second")
    assert play.shown.counts.lost == before == 2 * 500 - 160


def test_what_was_trained_before_checkpoint_with_which_run_began_is_in_no_count_rule_43(
    play: Play,
) -> None:
    known = log.Trained(before=700, parent=700)
    began = known.also(log.Trained(incarnation=1, now=10, said=10))
    play("counted 400 1000")
    play.history.trained.update({"c-0": began})
    assert play.shown.counts.trained == 2800 + 20


def test_job_counts_time_in_which_learner_trains_and_not_time_in_which_process_stood_still(
    play: Play,
) -> None:
    play("begun a-0; see shown.seconds 0.0")
    for t in range(1, 9):
        play.later(0.25)
        play.report("a-0", t)
        play.one.feed(play.one.shard.tick_time(play.one.now))
    play("see shown.seconds 2.0; see shown.training_seconds 2.0; later 6.0")
    play.one.feed(play.one.shard.tick_time(play.one.now))
    play("see shown.seconds 2.0")
    for _ in range(4):
        play.later(0.5)
        play.one.feed(play.one.shard.tick_time(play.one.now))
    play("see shown.seconds 4.0; see shown.training_seconds 2.0")
