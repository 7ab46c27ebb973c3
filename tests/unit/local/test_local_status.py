"""What the shards say becomes a status in the shape of the CRD's."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.reasons import TYPES
from atoll_operator.local import local_status
from atoll_operator.local.local_status import NO_REPORTS, ProcessReports, RunSnapshot
from atoll_operator.local.show import live

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
            step_seconds=0.1, loss=2.0, tokens=400,
            tokens_here=400, merge_tokens_per_step=10.0,
        )
        for name in training
    ]  # fmt: skip
    gone = {"a-0", "a-1", "b-0"} - set(training)
    slots += [pb.SlotStatus(slot=name, state=pb.SLOT_LOST, loss=math.nan) for name in sorted(gone)]
    return pb.StatusReply(
        run="r", state=f"SHARD_{state.upper()}", tick=tick, slots=slots, epoch=3,
        trained=400 * len(training), ticks_per_second=10.0,
    )  # fmt: skip


def snapshot(
    replies: Sequence[pb.StatusReply | None], ends: ProcessReports = NO_REPORTS, **more: Any
) -> RunSnapshot:
    """What a look at the shards finds."""
    found = local_status.status(job(), replies, NOW, ends)
    return RunSnapshot(job=job(), replies=replies, status=found, bytes_per_second=None, **more)


def shown(replies: Sequence[pb.StatusReply | None], *more: Any) -> Any:
    """status.json."""
    return local_status.status(job(), replies, NOW, *more).to_object()


def said(status: Any) -> dict[str, str]:
    return {each["type"]: f"{each['status']}/{each['reason']}" for each in status["conditions"]}


def message(status: Any, kind: str = "Degraded") -> str:
    told: dict[str, str] = {c["type"]: c.get("message", "") for c in status["conditions"]}
    return told[kind]


@pytest.mark.parametrize("known", ["nothing", "joining"])
def test_learners_that_start_are_no_degradation_and_one_that_was_lost_is(known: str) -> None:
    def status(b_0: pb.SlotState, *starting: str, step_seconds: float = 0.1) -> Any:
        registrar = reply(training=("a-0",))
        del registrar.slots[1:]
        registrar.slots.add(slot="b-0", state=b_0, step_seconds=step_seconds)
        if known == "joining":
            registrar.slots.add(slot="a-1", state=pb.SLOT_JOINING)
        return shown([registrar, reply()], ProcessReports(starting=dict.fromkeys(starting, 1.0)))

    found = status(pb.SLOT_TRAINING, "a-0", "a-1")  # a-0 trains already
    assert said(found)["Degraded"] == "False/LearnersStarting"
    assert said(found)["Progressing"] == "True/Training"
    found = status(pb.SLOT_JOINING, "a-1", "b-0")
    assert said(found)["Progressing"] == "False/LearnersStarting"
    for state in (pb.SLOT_TRAINING, pb.SLOT_STALLED):  # of a long first step
        found = status(state, "a-1", "b-0", step_seconds=0.0)
        assert said(found)["Progressing"] == "False/LearnersStarting"
        assert said(found)["Degraded"] == "False/LearnersStarting"
    found = status(pb.SLOT_STALLED, "a-1", "b-0")  # it has made steps
    assert said(found)["Degraded"] == "True/LearnersMissing"
    found = status(pb.SLOT_LOST, "a-1", "b-0")  # its process has not ended, and is not heard
    assert said(found)["Progressing"] == "False/WaitingForLearners"
    assert message(found) == "1 of 3 learners are not in training: b-0"


def test_a_process_that_has_ended_is_named_with_its_last_words_until_it_is_back() -> None:
    ends = ProcessReports(
        given_up=["a-1 is given up (exit code 1): ValueError: boom"],
        started_again={"a-0": "a-0 ended", "b-0": "b-0 ended (exit code 1): KeyError: 'x'"},
    )
    status = shown([reply(training=("a-0",)), reply()], ends)
    assert said(status)["Degraded"] == "True/PodsExited"
    assert message(status) == (  # a-0 trains again
        "a-1 is given up (exit code 1): ValueError: boom; b-0 ended (exit code 1): KeyError: 'x'"
    )
    ends = ProcessReports(started_again={"shard-1": "shard-1 ended (exit code 70): OSError: full"})
    status = shown([reply(), None], ends)
    assert said(status)["Degraded"] == "True/PodsMissing"
    assert message(status) == "shard-1 ended (exit code 70): OSError: full"
    assert said(shown([reply(), reply()], ends))["Degraded"] == "False/AllWell"


def test_a_learner_that_has_diverged_is_named_with_its_tensor() -> None:
    replies = [reply(), reply()]
    refused = "its last 3 offers were refused: slice 0: values are not finite: head.weight"
    replies[1].slots[2].reason = refused
    replies[0].slots[0].reason, replies[0].slots[0].state = "left", pb.SLOT_LOST
    assert said(shown(replies))["Degraded"] == "True/OffersRefused"
    assert message(shown(replies)) == f"b-0: {refused}"


def test_learners_that_train_on_the_same_data_are_named() -> None:
    replies = [reply(), reply()]
    for slot in replies[0].slots[:2]:
        slot.first_losses = 1 << 63
    assert said(shown(replies))["Degraded"] == "True/SameData"
    assert message(shown(replies)).startswith("a-0, a-1 had equal losses")


def test_a_shard_that_does_not_answer_makes_the_step_unknown_never_the_last_value() -> None:
    first = shown([None, None])
    assert tuple(said(first)) == TYPES
    assert not {"progress", "learnersLive"} & first.keys()
    assert first["columns"]["learners"] == "?/3"
    assert all(each.keys() == FIELDS and each["reason"] for each in first["conditions"])
    status = shown([reply(), None])
    assert "progress" not in status
    assert said(status)["SyncerReady"] == "Unknown/NoAnswer"
    assert said(status)["Progressing"] == "False/WaitingForSyncer"
    assert status["syncer"] == {"shards": 2, "ready": 1, "epochs": [3, 0]}


def test_complete_and_failed_come_from_the_registrar_and_the_shards() -> None:
    ended = said(shown([reply("Final"), reply("Final")]))
    assert (ended["Progressing"], ended["Complete"]) == ("True/Exporting", "False/NotComplete")
    complete = shown([reply("Complete"), reply("Final")])  # nobody trains who has yet to leave
    assert (complete["columns"]["learners"], complete["learnersLive"]) == ("0/3", 0)
    assert {each["live"] for each in complete["regions"]} == {0}
    assert complete["progress"]["loss"]
    done = said(complete)
    assert (done["Complete"], done["Failed"]) == ("True/Trained", "False/NotFailed")
    assert {done[kind] for kind in TYPES[1:4]} == {"False/Complete"}
    idle = reply(state="Complete", training=("a-0", "a-1"))
    idle.epoch = 1
    assert local_status.phase(job(), [idle, idle]).message.endswith("; b-0 made no step")
    lost = reply("Failed")
    lost.reason = "its store is empty"
    failed = shown([reply(), lost])
    assert said(failed)["Failed"] == "True/StoreLost"
    assert message(failed, "Failed") == "its store is empty"


def test_the_live_table_has_a_row_for_each_learner_and_shard() -> None:
    joined = reply(training=("a-0", "b-0"))
    joined.slots[1].step_seconds, joined.slots[1].loss = 0.0, math.nan
    _, _, empty, heads, *rows = printed(snapshot([joined, reply()]), 100).splitlines()
    assert (empty.strip(), heads.split()[0]) == ("", "LEARNER")
    assert rows[0].split()[:5] == ["a-0", "Training", "0.10", "s", "100"]
    assert rows[1].split() == ["b-0", "Starting", *"-------"]  # no step since its start
    assert rows[2].split() == ["a-1", "Lost", *"-------"]
    assert [row.split()[:3] for row in rows[5:]] == [
        ["shard-0", "Serving", "50"],
        ["shard-1", "Serving", "50"],
    ]


def test_the_line_of_a_run_has_all_that_a_person_asks_for() -> None:
    replies = reply(), reply()
    for each in replies:
        each.counts.MergeFrom(pb.Tokens(trained=1000, merged=914, slices=1))
    seen = snapshot(replies, elapsed_seconds=185.0)
    line = live.line(replace(seen, bytes_per_second=2.5e6))
    assert line == (
        "step 50 of 200  about 15 s left  loss 2.0000"
        "  learners 3/3  elapsed 3 min 5 s  2.50 MB/s  91% merged"
    )
    slow = reply(tick=123_456)
    slow.evaluation.loss = 2.3456
    first, second, *_ = printed(snapshot([slow, slow]), 80).splitlines()
    assert (first[:10], first[-15:]) == ("tiny  step", "held out 2.3456")  # no line is cut
    assert second[:12] == "learners 3/3"


def test_learners_that_have_yet_to_join_are_named_with_their_seconds() -> None:
    some = reply(training=("a-0",))
    del some.slots[1:]
    seen = replace(snapshot([some, some]), starting={"a-0": 30.0, "a-1": 12.2, "b-0": 12.0})
    assert "starting: a-1 (12 s), b-0 (12 s)" in live.line(seen)
    assert re.search(
        r"\na-0 +Training .*\na-1 +Starting .*\nb-0 +Starting ", printed(seen, 100), re.S
    )
    many = replace(snapshot([None, None]), starting={f"a-{n}": 1.0 for n in range(5)})
    assert live.line(many).endswith("starting: a-0 (1 s), a-1 (1 s), a-2 (1 s) and 2 more")
    assert "starting" not in live.line(snapshot([reply(), reply()]))


def test_the_end_is_told_as_an_end_and_not_as_missing_learners() -> None:
    assert "learners 3/3" in live.line(snapshot([reply(tick=190), reply(tick=190)]))
    exporting = live.line(snapshot([reply("Final", 203, ()), reply("Final", 203, ())]))
    assert "step 200 of 200" in exporting
    assert "final export" in exporting
    assert not re.search("learners|left", exporting)
    assert "exported" in live.line(snapshot([reply("Complete", 203, ()), reply("Final", 203, ())]))


def printed(seen: RunSnapshot, width: int) -> str:
    """What a terminal shows of a run."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(live.picture(seen))
    return console.export_text()


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
    warning = (
        "44% of the trained tokens came too late for a merge: raise spec.sync.overlap (now 2) so"
        " that values are there in time, or raise spec.sync.quorum (now 2) so that merges wait"
        " for more learners (a-1 75%, b-0 50%)"
    )
    assert message(status, "Ready") == warning
    assert message(status, "Progressing") == f"3 of 3 in training, quorum 2; {warning}"
    assert said(status)["Progressing"] == said(status)["Ready"] == "True/Training"
    assert said(status)["Degraded"] == "False/AllWell"
    for status in (late(0.1, a_1=0.1), late(0.44, tick=39, a_1=0.44)):  # little, or of the start
        assert all("too late" not in each.get("message", "") for each in status["conditions"])
    assert status["progress"]["latePercentage"] == 44


def test_work_of_which_over_half_is_overwritten_is_told() -> None:
    """As on a cluster whose shards starve beside the learners."""
    replies = [reply(tick=50), reply(tick=50)]
    for each in replies:
        each.counts.trained, each.counts.overlap, each.counts.slices = 1000, 730, 1
    warning = (
        "73% of the trained tokens were overwritten while a merge was on its way: raise"
        " spec.sync.period (now 8), or give the shards more CPU"
    )
    assert message(shown(replies), "Ready") == warning
    for each in replies:
        each.counts.overlap = 500
    assert message(shown(replies), "Ready") == ""


def test_while_shard_0_is_away_its_last_numbers_stay_and_it_is_named() -> None:
    seen = replace(snapshot([None, reply(tick=60)]), known=[reply(tick=50), reply(tick=60)])
    assert live.line(seen).startswith("step 50 of 200  shard-0 does not answer")
    assert "starting" not in live.line(replace(seen, starting={"a-0": 9.0}))
    assert re.search(r"\na-0 +\? +0\.10 s +100 .*\nshard-0 +silent ", printed(seen, 150), re.S)
