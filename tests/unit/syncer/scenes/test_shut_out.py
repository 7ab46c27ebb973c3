"""Who is shut out of a job: slots, regions and certificates (rule 41)."""

from atoll_syncer.model import log
from unit.syncer.fixtures import Play, taken
from unit.syncer.shard_side import RUN


def test_the_session_of_a_region_that_has_left_ends_after_the_grace_rule_41(play: Play) -> None:
    play("begun a-0 b-0 b-1; listing a=2 b=2; listing a=2; alive 88 a-0 b-0 b-1; ends")
    play("alive 4 a-0 b-0 b-1; ends UNKNOWN_SLOT UNKNOWN_SLOT; see last retry")
    assert (
        "b-0 is shut out: the manifest in the syncer's cluster has no region b"
        in play.last[0].reason
    )
    play("see state.sessions.open only a-0; see slots.b-0.state SLOT_LEFT")


def test_slot_beyond_learners_is_shut_out_and_others_of_its_region_stay_rule_41(play: Play) -> None:
    play("begun b-0 b-1; listing a=2 b=2; listing a=2 b=1; alive 92 b-0 b-1")
    play("ends UNKNOWN_SLOT")
    assert (
        "b-1 is shut out: the manifest in the syncer's cluster has 1 learners"
        in play.last[0].reason
    )
    play("see state.sessions.open only b-0")


def test_a_process_that_starts_gives_no_grace_to_who_has_left_before_rule_41(play: Play) -> None:
    play.process(entries=(log.RunStarted(run=RUN), taken("b-0")), regions="a:2")
    play("join b-0; ends UNKNOWN_SLOT; join b-7; ends UNKNOWN_SLOT")
    play.process(entries=(log.RunStarted(run=RUN), taken("b-0")), regions="b:0")
    play("join b-0; ends UNKNOWN_SLOT")


def test_who_is_shut_out_names_no_run_rule_41(play: Play) -> None:
    play.process(entries=(taken("b-0"),), fresh=False, regions="a:2")
    play("join b-0 run=theirs; see state.run.named {}")


def test_a_machine_joins_only_as_a_slot_that_the_list_gives_it_rule_41(play: Play) -> None:
    play("begun a-0; machines m=b-0 n=a-1; join b-0 region=b machine=m; sent welcome b-0")
    play("join b-1 region=b machine=m; ends NOT_ALLOWED; see last.0.retry")
    assert play.last[0].reason == "machine m has no slot b-1 on the job's list, or not any more"
    play("join b-1 region=b machine=o; ends NOT_ALLOWED; see last.0.retry")
    assert play.last[0].reason == "machine o has no place on the job's list, or not any more"
    # of any machine of its region
    play("join b-1 region=b; see state.sessions.open has b-1")
