"""Who may join: rule 3 (what must be equal), rule 4 (the registrar), rule 5 (every shard)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from atoll_syncer.model import log
from atoll_syncer.model.log import History
from atoll_syncer.rules.sessions import Admitted, admit, check
from unit.syncer.shard_side import run_file

JOB = run_file()
GOOD = {"protocol": PROTOCOL, "run_hash": JOB.hash, "layout_digest": "model", "slot": "a-0"}


def join(**fields: object) -> pb.Join:
    return pb.Join(**{**GOOD, "uid": "uid", "instance": "new", **fields})  # type: ignore[arg-type]


def taken(incarnation: int, instance: str, uid: str = "uid") -> log.Taken:
    return log.Taken(slot="a-0", incarnation=incarnation, uid=uid, instance=instance)


def owned(uid: str, word: int = 1) -> log.Owned:
    return log.Owned(slot="a-0", uid=uid, word=word)


def ask(
    asking: pb.Join, *entries: log.Entry, shard: int = 0, live: str = "", pending: bool = False
) -> Admitted | pb.End:
    history = History.of(entries)
    return admit(asking, history, shard=shard, live_instance=live, pending=pending)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("protocol", PROTOCOL + 1, pb.OTHER_PROTOCOL),
        ("run_hash", "other", pb.OTHER_RUN_HASH),
        ("layout_digest", "other", pb.OTHER_LAYOUT),
        ("slot", "nowhere-0", pb.UNKNOWN_SLOT),
        ("slot", "no slot", pb.UNKNOWN_SLOT),
    ],
)
def test_what_must_be_equal_everywhere_is_refused_for_good_with_a_remedy_rule_3(
    field: str, value: object, code: int
) -> None:
    end = check(join(**{field: value}), JOB, "model", "run")
    assert end is not None
    assert (end.code, end.retry) == (code, False)
    assert end.reason
    assert end.remedy


def test_before_a_run_has_started_trying_again_helps_rule_3() -> None:
    end = check(join(), JOB, "model", "")
    assert end is not None
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_an_observer_needs_no_slot_and_the_first_model_is_any() -> None:
    assert check(join(observer=True, slot=""), JOB, "", "run") is None


def test_an_instance_gets_the_next_incarnation_once_rule_4() -> None:
    first = ask(join())
    assert isinstance(first, Admitted)
    assert first.entry == taken(1, "new")
    again = ask(join(), taken(1, "new"))
    assert again == Admitted(incarnation=1)
    by_name = ask(join(incarnation=1), taken(1, "new"))
    assert by_name == Admitted(incarnation=1)


def test_a_slot_whose_session_lives_is_not_given_away_rule_4() -> None:
    end = ask(join(), taken(1, "old"), live="old")
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SLOT_HELD, True)
    assert isinstance(ask(join(), taken(1, "old")), Admitted)


def test_an_owners_word_gives_it_away_all_the_same_rule_4() -> None:
    answer = ask(join(), taken(1, "old", "old uid"), owned("uid"), live="old")
    assert isinstance(answer, Admitted)
    assert answer.incarnation == 2


def test_an_owners_word_supersedes_every_other_uid_and_nobody_may_be_named_rule_4() -> None:
    for word in ("another", ""):
        end = ask(join(), taken(1, "old"), owned(word))
        assert isinstance(end, pb.End)
        assert (end.code, end.retry) == (pb.SUPERSEDED, False)


def test_a_pod_newer_than_the_word_waits_for_the_operator_rule_4() -> None:
    end = ask(join(uid="newest"), taken(1, "old"), owned("uid"))
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_a_word_lifts_a_refusal_of_its_own_rule_4() -> None:
    words = (taken(1, "old"), owned("another"), owned("uid", 2))
    assert isinstance(ask(join(), *words), Admitted)


def test_an_instance_once_superseded_is_refused_for_good_rules_4_and_5() -> None:
    entries = (taken(1, "new"), taken(2, "newer"))
    for asking in (join(), join(incarnation=1), join(incarnation=2)):
        end = ask(asking, *entries)
        assert isinstance(end, pb.End)
        assert (end.code, end.retry) == (pb.SUPERSEDED, False)


def test_every_shard_takes_a_higher_incarnation_at_once_rule_5() -> None:
    answer = ask(join(incarnation=3), taken(1, "old"), shard=1, live="old")
    assert isinstance(answer, Admitted)
    assert answer.entry == taken(3, "new")


def test_only_the_registrar_gives_incarnations_rule_4() -> None:
    end = ask(join(), shard=1)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_one_entry_of_a_slot_is_on_its_way_at_a_time() -> None:
    end = ask(join(), pending=True)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (pb.SLOT_HELD, True)
