"""May this learner join? What a shard asks of a Join before it lets it in (rules 3, 4 and 5)."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.rules.runs import Admitted, admit
from atoll_syncer.rules.sessions import check
from unit.syncer.shard_side import RUN, run_file

JOB = run_file()

IN_RUN = History(layout_digest="model", run="run")

GOOD = {"protocol": PROTOCOL, "run_hash": JOB.hash, "layout_digest": "model", "slot": "a-0"}


def a_join(**fields: object) -> pb.Join:
    return pb.Join(**{**GOOD, "uid": "uid", "instance": "new", **fields})  # type: ignore[arg-type]


def taken(incarnation: int, instance: str, uid: str = "uid") -> log.Taken:
    return log.Taken(slot="a-0", incarnation=incarnation, uid=uid, instance=instance)


def owned(uid: str, word: int = 1) -> log.Owned:
    return log.Owned(slot="a-0", uid=uid, generation=word)


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


def test_before_a_run_has_started_trying_again_helps_rule_3() -> None:
    end = check(a_join(), JOB, History(layout_digest="model"))
    assert end is not None
    assert (end.code, end.retry) == (pb.NOT_READY, True)


def test_an_observer_needs_no_slot_and_the_first_model_is_any() -> None:
    assert check(a_join(observer=True, slot=""), JOB, History(run="run")) is None


STARTED = log.RunStarted(run=RUN)
LOST = log.RunStarted(run=RUN, carried_on=True)
LOST_ITS_END = (
    STARTED,
    log.TermBegun(epoch=1, pod="pod", instance="registrar"),
    log.TermBegun(epoch=2, pod="pod", instance="registrar"),
)
OLD_PODS = (taken(1, "old", "old uid"), taken(2, "newer", "new uid"))


@pytest.mark.parametrize(
    ("fields", "entries", "known", "incarnation", "new"),
    [
        ({}, (), {}, 1, True),
        ({}, (taken(1, "new"),), {}, 1, False),  # asking again returns the same
        ({"incarnation": 1}, (taken(1, "new"),), {}, 1, False),
        ({}, (taken(1, "old"),), {}, 2, True),
        ({}, (taken(1, "old", "old uid"), owned("uid")), {"live": "old"}, 2, True),
        ({}, (taken(1, "old"), owned("another"), owned("uid", 2)), {}, 2, True),  # a refusal's end
        ({"uid": "new uid"}, OLD_PODS, {}, 3, True),
        ({"uid": "old uid"}, (*OLD_PODS, owned("old uid")), {}, 3, True),
        ({"incarnation": 3}, (taken(1, "old"),), {"shard": 1, "live": "old"}, 3, True),
        ({"incarnation": 4, "run": RUN}, (LOST, taken(3, "newer")), {}, 4, True),
        ({"incarnation": 4, "run": RUN}, (LOST, taken(3, "newer")), {"shard": 1}, 4, True),
        ({"incarnation": 7, "run": RUN}, (LOST,), {}, 7, True),
        ({"incarnation": 7, "run": RUN}, LOST_ITS_END, {}, 7, True),
    ],
)
def test_an_instance_gets_its_incarnation_once_rules_4_and_5(
    fields: dict[str, Any],
    entries: tuple[log.Entry, ...],
    known: dict[str, Any],
    incarnation: int,
    new: bool,
) -> None:
    answer = ask(a_join(**fields), *entries, **known)
    assert isinstance(answer, Admitted)
    assert answer.incarnation == incarnation
    entry = taken(incarnation, "new", fields.get("uid", "uid"))
    assert answer.entry == (entry if new else None)


@pytest.mark.parametrize(
    ("fields", "entries", "known", "code", "retry"),
    [
        ({}, (taken(1, "old"),), {"live": "old"}, pb.SLOT_HELD, True),
        ({}, (), {"pending": True}, pb.SLOT_HELD, True),  # one entry of a slot at a time
        ({}, (taken(1, "old"), owned("another")), {}, pb.SUPERSEDED, False),
        ({}, (taken(1, "old"), owned("")), {}, pb.SUPERSEDED, False),  # a word may name nobody
        ({"uid": "newest"}, (taken(1, "old"), owned("uid")), {}, pb.NOT_READY, True),
        ({}, (taken(1, "new"), taken(2, "newer")), {}, pb.SUPERSEDED, False),
        ({"incarnation": 1}, (taken(1, "new"), taken(2, "newer")), {}, pb.SUPERSEDED, False),
        ({"incarnation": 2}, (taken(1, "new"), taken(2, "newer")), {}, pb.SUPERSEDED, False),
        ({"uid": "old uid"}, OLD_PODS, {}, pb.SUPERSEDED, False),  # also as a new process
        ({}, (), {"shard": 1}, pb.NOT_READY, True),  # only the registrar gives incarnations
        ({}, (replace(taken(1, "new"), slot="a-1"),), {}, pb.OTHER_RUN, False),  # it has a slot
        *(  # on its way when its successor came; equal numbers are one too few
            (
                {"incarnation": number, "run": RUN},
                (LOST, taken(3, "newer")),
                {"shard": shard},
                pb.SUPERSEDED,
                False,
            )
            for number in (1, 2, 3)
            for shard in (0, 1)
        ),
        ({"incarnation": 7, "run": RUN}, (STARTED, taken(1, "old")), {}, pb.OTHER_RUN, False),
        ({"incarnation": 7}, (STARTED, taken(1, "old")), {}, pb.OTHER_RUN, False),
        ({"incarnation": 7}, (LOST,), {}, pb.OTHER_RUN, False),
        ({"incarnation": 7}, LOST_ITS_END, {}, pb.OTHER_RUN, False),
        *(  # after a loss, too, no live session loses its slot, and an owner's word holds
            ({"incarnation": 7, "run": RUN}, (*loss, taken(1, "old"), *word), known, code, retry)
            for loss in ((LOST,), LOST_ITS_END)
            for word, known, code, retry in (
                ((), {"live": "old"}, pb.SLOT_HELD, True),
                ((owned("another"),), {}, pb.SUPERSEDED, False),
            )
        ),
    ],
)
def test_what_does_not_get_the_slot_is_refused_for_good_or_tries_again_rules_4_and_5(
    fields: dict[str, Any],
    entries: tuple[log.Entry, ...],
    known: dict[str, Any],
    code: int,
    retry: bool,
) -> None:
    end = ask(a_join(**fields), *entries, **known)
    assert isinstance(end, pb.End)
    assert (end.code, end.retry) == (code, retry)
