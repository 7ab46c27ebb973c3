"""May this learner join? What a shard asks of a Join before it lets it in (rules 3, 4 and 5)."""

from dataclasses import replace

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from atoll_protos.run import Quorum
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.rules.incarnations import Admitted, admit
from atoll_syncer.rules.sessions import check
from unit.syncer.shard_side import (
    RUN,
    run_file,
)

JOB = run_file()

IN_RUN = History(layout_digest="model", run="run")

GOOD = {"protocol": PROTOCOL, "run_hash": JOB.hash, "layout_digest": "model", "slot": "a-0"}


def a_join(**fields: object) -> pb.Join:
    return pb.Join(**{**GOOD, "uid": "uid", "instance": "new", **fields})  # type: ignore[arg-type]


def taken(incarnation: int, instance: str, uid: str = "uid") -> log.Taken:
    return log.Taken(slot="a-0", incarnation=incarnation, uid=uid, instance=instance)


def owned(uid: str, word: int = 1) -> log.Owned:
    return log.Owned(slot="a-0", uid=uid, word=word)


def ask(
    asking: pb.Join,
    *entries: log.Entry,
    shard: int = 0,
    live: str = "",
    pending: bool = False,
    proved: bool = True,
) -> Admitted | pb.End:
    history = History.of(entries)
    return admit(asking, history, shard=shard, live_instance=live, pending=pending, proved=proved)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("protocol", PROTOCOL + 1, pb.OTHER_PROTOCOL),
        ("run_hash", "other", pb.OTHER_RUN_HASH),
        ("layout_digest", "other", pb.OTHER_LAYOUT),
        ("slot", "no slot", pb.UNKNOWN_SLOT),
    ],
)
def test_what_must_be_equal_everywhere_is_refused_for_good_with_a_remedy_rule_3(
    field: str, value: object, code: int
) -> None:
    end = check(a_join(**{field: value}), JOB, IN_RUN)
    assert end is not None
    assert (end.code, end.retry) == (code, False)
    assert end.reason
    assert end.remedy


def test_a_slot_of_a_region_that_is_not_in_the_run_file_yet_may_try_again_rule_3() -> None:
    end = check(a_join(slot="new-0"), JOB, IN_RUN)
    assert end is not None
    assert (end.code, end.retry) == (pb.UNKNOWN_SLOT, True)
    assert "new" in end.reason
    assert check(a_join(slot="new-0"), replace(JOB, regions=()), IN_RUN) is None


def test_a_learner_of_an_earlier_version_with_the_number_of_learners_is_let_in_rule_3() -> None:
    sync = replace(JOB.sync, overlap=0, lockstep=True, quorum=Quorum.ALL)
    word, number = replace(JOB, sync=sync), replace(JOB, sync=replace(sync, quorum=2))
    for shard, learner in ((word, number), (number, word)):
        assert check(a_join(run_hash=learner.hash), shard, IN_RUN) is None


def test_before_a_run_has_started_trying_again_helps_rule_3() -> None:
    end = check(a_join(), JOB, History(layout_digest="model"))
    assert end is not None
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_an_observer_needs_no_slot_and_the_first_model_is_any() -> None:
    assert check(a_join(observer=True, slot=""), JOB, History(run="run")) is None


def test_an_instance_gets_the_next_incarnation_once_rule_4() -> None:
    first = ask(a_join())
    assert isinstance(first, Admitted)
    assert first.entry == taken(1, "new")
    again = ask(a_join(), taken(1, "new"))
    assert again == Admitted(incarnation=1)
    by_name = ask(a_join(incarnation=1), taken(1, "new"))
    assert by_name == Admitted(incarnation=1)


def test_a_slot_whose_session_lives_is_not_given_away_rule_4() -> None:
    end = ask(a_join(), taken(1, "old"), live="old")
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SLOT_HELD, True)
    assert isinstance(ask(a_join(), taken(1, "old")), Admitted)


def test_an_owners_word_gives_it_away_all_the_same_rule_4() -> None:
    answer = ask(a_join(), taken(1, "old", "old uid"), owned("uid"), live="old")
    assert isinstance(answer, Admitted)
    assert answer.incarnation == 2


def test_an_owners_word_supersedes_every_other_uid_and_may_name_none_rule_4() -> None:
    for word in ("another", ""):
        end = ask(a_join(), taken(1, "old"), owned(word))
        assert isinstance(end, pb.End)
        assert (end.code, end.retry) == (pb.SUPERSEDED, False)


def test_a_pod_newer_than_the_word_waits_for_the_operator_rule_4() -> None:
    end = ask(a_join(uid="newest"), taken(1, "old"), owned("uid"))
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_a_word_lifts_a_refusal_of_its_own_rule_4() -> None:
    words = (taken(1, "old"), owned("another"), owned("uid", 2))
    assert isinstance(ask(a_join(), *words), Admitted)


def test_an_instance_once_superseded_is_refused_for_good_rules_4_and_5() -> None:
    entries = (taken(1, "new"), taken(2, "newer"))
    for asking in (a_join(), a_join(incarnation=1), a_join(incarnation=2)):
        end = ask(asking, *entries)
        assert isinstance(end, pb.End)
        assert (end.code, end.retry) == (pb.SUPERSEDED, False)


def test_a_pod_once_superseded_is_refused_for_good_rule_4() -> None:
    """Also as a new process, in a short break of the pod that has the slot now."""
    entries = (taken(1, "old", "old uid"), taken(2, "newer", "new uid"))
    end = ask(a_join(uid="old uid"), *entries)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SUPERSEDED, False)
    assert isinstance(ask(a_join(uid="new uid"), *entries), Admitted)
    assert isinstance(ask(a_join(uid="old uid"), *entries, owned("old uid")), Admitted)


def test_every_shard_takes_a_higher_incarnation_at_once_rule_5() -> None:
    answer = ask(a_join(incarnation=3), taken(1, "old"), shard=1, live="old")
    assert isinstance(answer, Admitted)
    assert answer.entry == taken(3, "new")


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_a_lower_incarnation_is_refused_for_good_although_its_instance_never_came_rule_5(
    shard: int, incarnation: int
) -> None:
    """It was on its way to this shard when its successor came; equal numbers are one too few."""
    entries = (log.RunStarted(run=RUN, carried_on=True), taken(3, "newer"))
    end = ask(a_join(incarnation=incarnation, run=RUN), *entries, shard=shard)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SUPERSEDED, False)
    assert isinstance(ask(a_join(incarnation=4, run=RUN), *entries, shard=shard), Admitted)


def test_the_registrar_takes_no_incarnation_that_it_did_not_give_rule_4() -> None:
    for run in (RUN, ""):
        end = ask(a_join(incarnation=7, run=run), log.RunStarted(run=RUN), taken(1, "old"))
        assert isinstance(end, pb.End)
        assert (end.code, end.retry) == (pb.OTHER_RUN, False)


@pytest.mark.parametrize(
    "loss",
    [
        (log.RunStarted(run=RUN, carried_on=True),),
        (
            log.RunStarted(run=RUN),
            log.TermBegun(epoch=1, pod="pod", instance="registrar"),
            log.TermBegun(epoch=2, pod="pod", instance="registrar"),
        ),
    ],
    ids=["whole log", "its end"],
)
def test_a_registrar_that_lost_its_log_takes_what_it_may_have_given_rule_4(
    loss: tuple[log.Entry, ...],
) -> None:
    """But then, too, no live session loses its slot, and an owner's word holds."""
    asking = a_join(incarnation=7, run=RUN)
    assert isinstance(ask(asking, *loss), Admitted)
    for end, code in (
        (ask(asking, *loss, taken(1, "old"), live="old"), pb.SLOT_HELD),
        (ask(asking, *loss, taken(1, "old"), owned("another")), pb.SUPERSEDED),
        (ask(a_join(incarnation=7), *loss), pb.OTHER_RUN),
    ):
        assert isinstance(end, pb.End)
        assert end.code == code


def test_only_the_registrar_gives_incarnations_rule_4() -> None:
    end = ask(a_join(), shard=1)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_one_entry_of_a_slot_is_on_its_way_at_a_time() -> None:
    end = ask(a_join(), pending=True)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SLOT_HELD, True)
