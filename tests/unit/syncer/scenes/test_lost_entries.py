"""Rule 22: a shard whose log has lost entries takes back what they may have named."""

from atoll_syncer.model import log
from unit.syncer.fixtures import Play, lineage, taken
from unit.syncer.shard_side import RUN


def test_process_with_lost_entries_begins_above_every_term_that_they_may_have_begun(
    play: Play,
) -> None:
    play("damaged")
    epochs = [e.epoch for e in play.one.entries if isinstance(e, log.TermBegun)]
    assert epochs[-1] == epochs[-2] + 2


def test_version_that_lost_entry_named_is_taken_back_and_no_round_opens_before(play: Play) -> None:
    play("damaged")
    before = dict(play.history.heads)
    play("back a-0 0 0; wait 5.0; see not state.serving; back b-0 1 0; wait 1.0")
    number = before[0].number + 1
    wanted = play.one.sent("send_held")
    assert [(to, each.version.slice, each.version.version.number) for to, each in wanted] == [
        (play.s["b-0"], 0, number)
    ]
    play.held("b-0", 0, number, epoch=before[0].epoch)
    play("wait 1.0; see state.serving")
    assert play.heads[0] == number + 1
    assert play.history.heads[1] == before[1]
    assert before[1].merges > 0 == play.history.heads[0].merges
    play("see state.sessions.open has a-0")


def test_where_no_learner_holds_more_the_heads_serve_on(play: Play) -> None:
    play("damaged")
    before = dict(play.history.heads)
    play("back a-0 0 0; back b-0 0 0; wait 1.0; asked; see state.serving")
    assert play.history.heads == before


def test_a_head_that_serves_on_goes_to_who_joined_meanwhile_without_it(play: Play) -> None:
    # The process was killed after the entry, before the Publish.
    play("damaged; back a-0 -1 0; back b-0 0 0; publishes; wait 1.0; see state.serving")
    play("publishes a-0:0")
    assert play.state.sessions.open[play.s["b-0"]].held == play.heads


def test_torn_slice_is_taken_back_from_who_holds_its_head_and_knows_its_lineage(play: Play) -> None:
    play("damaged 1")
    head = play.history.heads[1]
    play("back a-0 0 0; back b-0 0 0; wait 1.0")
    assert [(to, each.version.slice) for to, each in play.one.sent("send_held")] == [
        (play.s["a-0"], 1)
    ]
    merged = lineage("b-0", incarnation=1, base=head.number - 1, capture=16, cursor=77)
    play.held("a-0", 1, head.number, epoch=head.epoch, lineage=[merged])
    play("wait 1.0; see state.serving")
    assert (play.heads[1], play.history.torn) == (head.number + 1, set())
    assert [(m.slot, m.capture, m.cursor) for m in play.history.lineage(1)] == [("b-0", 16, 77)]


def test_registrar_whose_whole_beginning_is_lost_takes_no_seed_and_lets_no_shard_take_one(
    play: Play,
) -> None:
    # Both snapshots are damaged, and every learner has just started again and holds nothing.
    play("process started=False shards=2")
    play.history.lose(1500)
    assert play.history.apply_after_loss(taken("a-0", 7), RUN, 2) == ""
    play("start; join a-0 run=RUN incarnation=8; model a-0; wait 40.0; sent send_seed")
    play("see shown.state SHARD_FAILED; see history.begun {0}; clear; hello run=RUN")
    play("effect SendReply 1; see found.0.message.begun")


def test_the_loss_of_the_first_entries_of_a_job_does_not_keep_it_from_its_start(play: Play) -> None:
    # Fewer entries than a mark and a version take cannot hide a training.
    play("process started=False")
    play.history.lose(2)
    play.history.apply_after_loss(log.RunStarted(run=RUN), RUN, 1)
    play("start; join a-0; model a-0; sent send_seed a-0")
