"""What shows a shard that the registrar has given an incarnation (rule 5)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.rules.runs import made
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import KEY, RUN


def test_the_proof_of_the_registrars_welcome_opens_the_other_shards(play: Play) -> None:
    play("process shards=2; join a-1 right uid=right run=RUN; sent welcome a-1")
    given = play.messages[0]
    play("clear; hello; effect SendReply 1")
    key = play.found[0].message.key
    play("process shard=1 shards=2 fresh=False")
    play.told(key=key)
    play.join(
        "a-1", "right", uid="right", run=RUN, incarnation=given.incarnation, proof=given.proof
    )
    play('sent welcome a-1; see messages.0.proof ""')


def test_an_incarnation_that_nothing_proves_locks_no_slot(play: Play) -> None:
    # [Else a learner shuts another one of its region out for good.]
    join = pb.Join(slot="a-1", instance="liar", incarnation=3)
    other = pb.Join(slot="a-0", instance="liar")
    rightful = pb.Join(slot="a-1", instance="right")
    false = ["", made(KEY, RUN, other, 3), made(KEY, RUN, rightful, 3), made(KEY, RUN, join, 1)]
    false += [made("another", RUN, join, 3), made("", RUN, join, 3), made(KEY, "another", join, 3)]
    play("process shard=1 shards=2 fresh=False; told")
    for each in false:
        play.join("a-1", "liar", run=RUN, incarnation=3, proof=each)
    play("ends NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY")
    play("see last retry; see not history.taken")
    play("join a-1 right uid=right run=RUN incarnation=1")
    play("see state.sessions.open.a-1.welcomed")
    for each in false:
        play.join("a-1", "liar", run=RUN, incarnation=3, proof=each)
    play("ends NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY NOT_READY")
    play("see history.taken.a-1.incarnation 1; join a-1 newer uid=right run=RUN incarnation=2")
    play("see state.sessions.open.a-1.welcomed")


def test_a_shard_without_a_key_takes_no_incarnation(play: Play) -> None:
    play('process shard=1 shards=2 fresh=False; told key=""')
    proof = made("", RUN, pb.Join(slot="a-1", instance="liar"), 3)
    play.join("a-1", "liar", run=RUN, incarnation=3, proof=proof)
    play("ends NOT_READY")


def test_a_registrar_keeps_its_key_over_restarts(play: Play) -> None:
    play("process shards=2; restart started=False")
    play.state.run.key = "of another process"
    play("start; clear; hello; effect SendReply 1")
    assert play.found[0].message.key == KEY


def test_a_registrar_that_has_lost_its_key_gives_another_and_both_count(play: Play) -> None:
    play.process(shards=2, started=False, entries=(log.RunStarted(run=RUN),))
    play.state.run.key = "of another process"
    play("start; clear; hello; effect SendReply 1")
    key = play.found[0].message.key
    play("process shard=1 shards=2 fresh=False; told")
    play.told(key=key)
    new = made(key, RUN, pb.Join(slot="a-1", instance="right"), 2)
    play.join("a-1", "right", run=RUN, incarnation=2, proof=new)
    play("see state.sessions.open.a-1.welcomed; join a-0 former run=RUN incarnation=7")
    play("see state.sessions.open.a-0.welcomed")
