"""What the shards say becomes a status in the shape of the CRD's."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.manifest import parse
from atoll_operator.api.reasons import TYPES
from atoll_operator.api.spec import Job
from atoll_operator.local import live, progress

MANIFEST = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 200
  regions: [{name: a, learners: 2}, {name: b}]
  syncer: {region: a, shards: 2}
  sync: {fragments: 4, period: 8, quorum: 2}
"""
NOW = "2026-01-01T00:00:00Z"
FIELDS = {"type", "status", "reason", "message"}


def job() -> Job:
    return parse(MANIFEST)


def reply(
    state: str = "Serving", tick: int = 50, training: tuple[str, ...] = ("a-0", "a-1", "b-0")
) -> pb.StatusReply:
    slots = [
        pb.SlotStatus(
            slot=name,
            state=pb.SLOT_TRAINING,
            t_m=40,
            step_seconds=0.1,
            loss=2.0,
            tokens=400,
            tokens_here=400,
        )
        for name in training
    ]
    gone = {"a-0", "a-1", "b-0"} - set(training)
    slots += [pb.SlotStatus(slot=name, state=pb.SLOT_LOST, loss=math.nan) for name in sorted(gone)]
    return pb.StatusReply(
        run="r",
        state=f"SHARD_{state.upper()}",
        tick=tick,
        slots=slots,
        trained=400 * len(training),
        ticks_per_second=10.0,
        epoch=3,
    )


def shown(replies: Sequence[pb.StatusReply | None]) -> Any:
    """status.json."""
    return progress.status(job(), replies, NOW).to_object()


def said(status: Any) -> dict[str, str]:
    return {each["type"]: f"{each['status']}/{each['reason']}" for each in status["conditions"]}


def test_every_condition_is_there_from_the_first_look() -> None:
    first = shown([None, None])
    assert tuple(said(first)) == TYPES
    assert said(first)["SyncerReady"] == "Unknown/NoAnswer"
    assert said(first)["LearnersAvailable"] == "Unknown/SyncerSilent"
    assert said(first)["Complete"] == "False/NotComplete"
    assert "progress" not in first
    assert all(each.keys() == FIELDS and each["reason"] for each in first["conditions"])


def test_the_step_is_the_lowest_tick_over_the_shards() -> None:
    registrar = reply(tick=60)
    registrar.evaluation.loss = 1.25
    status = shown([registrar, reply(tick=50)])
    assert status["progress"]["step"] == 50
    assert status["progress"]["progressPercentage"] == 25
    assert status["progress"]["estimatedRemainingSeconds"] == 15
    assert status["progress"]["metrics"][0] == {"name": "outer_loss", "value": "1.2500"}
    assert status["progress"]["loss"] == "2.0000"
    assert said(status)["SyncerReady"] == "True/Serving"
    assert said(status)["Progressing"] == "True/Training"


def test_who_is_not_in_training_is_named() -> None:
    status = shown([reply(training=("a-0", "b-0")), reply()])
    (message,) = [c["message"] for c in status["conditions"] if c["type"] == "Degraded"]
    assert message == "1 of 3 learners are not in training: a-1"


@pytest.mark.parametrize("shown", ["nothing", "joining"])
def test_learners_that_start_are_no_degradation_and_one_that_was_lost_is(shown: str) -> None:
    registrar = reply(training=("a-0",))
    kept = [each for each in registrar.slots if each.slot != "a-1"]
    del registrar.slots[:]
    registrar.slots.extend(kept)
    if shown == "joining":
        registrar.slots.add(slot="a-1", state=pb.SLOT_JOINING)
    starting = progress.Ends(starting={"a-0": 1.0, "a-1": 1.0})  # a-0 trains already
    registrar.slots[1].state = pb.SLOT_TRAINING  # b-0
    found = progress.status(job(), [registrar, reply()], NOW, starting).to_object()
    assert said(found)["Degraded"] == "False/LearnersStarting"
    assert said(found)["LearnersAvailable"] == "True/Quorum"
    registrar.slots[1].state = pb.SLOT_JOINING
    starting = progress.Ends(starting={"a-1": 1.0, "b-0": 1.0})
    found = progress.status(job(), [registrar, reply()], NOW, starting).to_object()
    assert said(found)["LearnersAvailable"] == "False/LearnersStarting"
    assert said(found)["Progressing"] == "False/LearnersStarting"
    registrar.slots[1].state = pb.SLOT_LOST  # its process has not ended, and is not heard
    found = progress.status(job(), [registrar, reply()], NOW, starting).to_object()
    assert said(found)["LearnersAvailable"] == "False/TooFew"
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Degraded"]
    assert message == "1 of 3 learners are not in training: b-0"


def test_a_shard_that_has_ended_is_named_until_it_answers() -> None:
    ends = progress.Ends(started_again={"shard-1": "shard-1 ended (exit code 70): OSError: full"})
    found = progress.status(job(), [reply(), None], NOW, ends).to_object()
    assert said(found)["Degraded"] == "True/PodsMissing"
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Degraded"]
    assert message == "shard-1 ended (exit code 70): OSError: full"
    found = progress.status(job(), [reply(), reply()], NOW, ends).to_object()
    assert said(found)["Degraded"] == "False/AllWell"


def test_a_step_that_does_not_move_is_told() -> None:
    for seconds, expected in ((0.0, "True/Training"), (121.0, "False/Stalled")):
        found = progress.status(job(), [reply(), reply()], NOW, still_seconds=seconds)
        assert said(found.to_object())["Progressing"] == expected


def test_a_process_that_has_ended_is_named_with_its_last_words() -> None:
    ends = progress.Ends(
        given_up=["a-1 is given up (exit code 1): ValueError: boom"],
        started_again={"a-0": "a-0 ended", "b-0": "b-0 ended (exit code 1): KeyError: 'x'"},
    )
    replies = [reply(training=("a-0",)), reply()]
    found = progress.status(job(), replies, NOW, ends).to_object()
    assert said(found)["Degraded"] == "True/PodsExited"
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Degraded"]
    assert message == (  # a-0 trains again
        "a-1 is given up (exit code 1): ValueError: boom; b-0 ended (exit code 1): KeyError: 'x'"
    )


def test_a_learner_that_has_diverged_is_named_with_its_tensor() -> None:
    replies = [reply(), reply()]
    refused = "its last 3 offers were refused: slice 0: values are not finite: head.weight"
    replies[1].slots[2].reason = refused
    replies[0].slots[0].reason, replies[0].slots[0].state = "left", pb.SLOT_LOST
    (degraded,) = [c for c in shown(replies)["conditions"] if c["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "OffersRefused")
    assert degraded["message"] == f"b-0: {refused}"


def test_a_shard_that_does_not_answer_makes_the_step_unknown_never_the_last_value() -> None:
    status = shown([reply(), None])
    assert "progress" not in status
    assert said(status)["SyncerReady"] == "Unknown/NoAnswer"
    assert said(status)["Progressing"] == "False/WaitingForSyncer"
    assert status["syncer"] == {"shards": 2, "ready": 1, "epochs": [3, None]}


@pytest.mark.parametrize(
    ("training", "available", "degraded"),
    [
        (("a-0", "a-1", "b-0"), "True/Quorum", "False/AllWell"),
        (("a-0", "b-0"), "True/Quorum", "True/LearnersMissing"),
        (("a-0",), "False/TooFew", "True/LearnersMissing"),
    ],
)
def test_learners_are_counted_by_region_and_against_the_quorum(
    training: tuple[str, ...], available: str, degraded: str
) -> None:
    replies = [reply(training=training), reply(training=training)]
    status = shown(replies)
    assert status["learnersLive"] == len(training)
    assert said(status)["LearnersAvailable"] == available
    assert said(status)["Degraded"] == degraded
    live = {each["name"]: each["live"] for each in status["regions"]}
    assert live["a"] + live["b"] == len(training)


def test_complete_and_failed_come_from_the_registrar_and_the_shards() -> None:
    ended = said(shown([reply("Final"), reply("Final")]))
    assert (ended["Progressing"], ended["Complete"]) == ("True/Exporting", "False/NotComplete")
    done = said(shown([reply("Complete"), reply("Final")]))
    assert (done["Complete"], done["Failed"]) == ("True/Trained", "False/NotFailed")
    assert {done[kind] for kind in TYPES[1:5]} == {"False/Complete"}
    lost = reply("Failed")
    lost.reason = "its store is empty"
    failed = shown([reply(), lost])
    assert said(failed)["Failed"] == "True/StoreLost"
    (why,) = (each for each in failed["conditions"] if each["type"] == "Failed")
    assert why["message"] == "its store is empty"


def test_a_row_is_there_for_every_learner_also_before_it_joins() -> None:
    rows = live.slot_rows(job(), reply(training=("a-0", "b-0")))
    assert [row[:3] for row in rows] == [
        ["a-0", "a", "Training"],
        ["a-1", "a", "Lost"],
        ["b-0", "b", "Training"],
    ]
    assert [row[2] for row in live.slot_rows(job(), None)] == ["Starting"] * 3


def test_the_line_of_a_run_has_all_that_a_person_asks_for() -> None:
    replies = [reply(), reply()]
    seen = progress.Snapshot(
        job=job(),
        replies=replies,
        status=progress.status(job(), replies, NOW),
        bytes_per_second=2.5e6,
        elapsed_seconds=185.0,
        merged_share=0.914,
    )
    line = live.line(seen)
    for part in (
        "step 50 of 200",
        "learners 3/3",
        "elapsed 3 min 5 s",
        "2.50 MB/s",
        "91% merged",
        "loss 2.0000",
        "about 15 s left",
    ):
        assert part in line


def test_learners_that_have_yet_to_join_are_named_with_their_seconds() -> None:
    some = reply(training=("a-0",))
    del some.slots[1:]
    seen = replace(snapshot([some, some]), starting={"a-0": 30.0, "a-1": 12.2, "b-0": 12.0})
    assert "starting: a-1 (12 s), b-0 (12 s)" in live.line(seen)
    many = replace(snapshot([None, None]), starting={f"a-{n}": 1.0 for n in range(5)})
    assert live.line(many).endswith("starting: a-0 (1 s), a-1 (1 s), a-2 (1 s) and 2 more")
    assert "starting" not in live.line(snapshot([reply(), reply()]))


def test_the_row_of_a_learner_that_has_made_no_step_since_its_start_has_no_numbers() -> None:
    """It had `own steps 241, tokens/s 0, loss nan`."""
    said = reply()
    said.slots[1].step_seconds, said.slots[1].loss = 0.0, math.nan
    rows = live.slot_rows(job(), said)
    assert rows[1] == ["a-1", "a", "Training", "-", "-", "-", "-"]
    assert rows[0] == ["a-0", "a", "Training", "40", "100", "2.000", "0.0 s ago"]


def snapshot(replies: Sequence[pb.StatusReply | None]) -> progress.Snapshot:
    status = progress.status(job(), replies, NOW)
    return progress.Snapshot(job=job(), replies=replies, status=status, bytes_per_second=None)


def test_the_end_is_told_as_an_end_and_not_as_missing_learners() -> None:
    training = live.line(snapshot([reply(tick=190), reply(tick=190)]))
    assert "learners 3/3" in training
    exporting = live.line(snapshot([reply("Final", 203, ()), reply("Final", 203, ())]))
    assert "step 200 of 200" in exporting
    assert "final export" in exporting
    assert "learners" not in exporting
    assert "left" not in exporting
    complete = live.line(snapshot([reply("Complete", 203, ()), reply("Final", 203, ())]))
    assert "exported" in complete


def test_no_line_above_the_table_is_cut_on_a_terminal_of_80_columns() -> None:
    slow = reply(tick=123_456)
    slow.evaluation.loss = 2.3456
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(live.picture(snapshot([slow, slow])))
    lines = console.export_text().splitlines()
    assert lines[0].startswith("tiny  step")
    assert lines[0].endswith("held out 2.3456")
    assert lines[1].startswith("learners 3/3")
    assert lines[2].startswith("┏")


def late(job_share: float, tick: int = 50, **shares: float) -> Any:
    """The status of a job in which so much of the learners' work comes too late."""
    registrar = reply(tick=tick)
    registrar.late_share = job_share
    for slot in registrar.slots:
        slot.late_share = shares.get(slot.slot.replace("-", "_"), 0.0)
    return shown([registrar, reply()])


def test_late_work_above_a_tenth_is_told_with_who_and_what_to_do_and_the_job_stays_ready() -> None:
    status = late(0.44, a_1=0.75, b_0=0.5, a_0=0.1)
    assert status["progress"]["latePercentage"] == 44
    message = (
        "44% of the trained tokens came too late for a merge: raise spec.sync.overlap (now 2) so"
        " that values are there in time, or spec.sync.quorum (now 2) so that merges wait for more"
        " learners (a-1 75%, b-0 50%)"
    )
    told = {each["type"]: each.get("message", "") for each in status["conditions"]}
    assert told["Progressing"] == told["Ready"] == message
    assert said(status)["Progressing"] == said(status)["Ready"] == "True/Training"
    assert said(status)["Degraded"] == "False/AllWell"


@pytest.mark.parametrize(("share", "tick"), [(0.1, 50), (0.44, 39)])
def test_little_late_work_and_that_of_the_first_five_periods_is_only_a_number(
    share: float, tick: int
) -> None:
    status = late(share, tick, a_1=share)
    assert all("too late" not in each.get("message", "") for each in status["conditions"])
    assert status["progress"]["latePercentage"] == round(100 * share)


def test_a_learner_without_a_step_is_named_at_the_end() -> None:
    done = reply(state="Complete", training=("a-0", "a-1"))
    done.epoch = 1
    message = progress.phase(job(), [done, done]).message
    assert message.endswith("; b-0 made no step")


def test_of_a_run_that_has_stopped_no_learner_is_live() -> None:
    before = progress.status(job(), [reply(), reply()], NOW)
    after = progress.suspended(before, "atoll run was killed")
    assert (before.learners_live, after.learners_live) == (3, 0)
    assert {each.live for each in after.regions or []} == {0}
