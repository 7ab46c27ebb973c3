"""Where a job stands, from what earlier passes wrote, its pods and the registrar."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.job_status import Condition, Status
from atoll_operator.kube.plan import phase
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import NodeState, Placement
from atoll_operator.kube.plan.situation import Situation, situation_of
from atoll_operator.kube.plan.status import problems
from atoll_protos.exits import FINISHED, ExitCode
from unit.kube.cluster_values import SETTINGS, job, learner, reply
from unit.kube.planner_side import NOW
from unit.kube.scenes import names, scene

EVERY = "us-east-0 us-east-1 eu-west-0"  # of the manifest; its quorum is 1
BAD, DONE = "exit=64 said=no_data", f"exit=0 said={FINISHED.replace(' ', '_')}"
PLAIN = "spec.sync={preset: DiLoCo}"  # its quorum is 3


def case_of(text: str, *changes: str, **more: Any) -> Situation:
    found = scene(text, *changes, **more)
    assert found.job is not None
    return situation_of(found, found.job, SETTINGS, NOW)


def decided(text: str, *changes: str, **more: Any) -> str:
    found = case_of(text, *changes, **more).phase
    return f"{found.kind.name} {found.reason}: {found.message}"


FAILED = "FAILED BadInput: tiny-us-east-0 ended with exit code 64: no data"
RUNNING, FINISHING = "RUNNING Running: ", "FINISHING LearnersFinished"


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        (f"{EVERY} {BAD}", "", FAILED),
        # one that ends for good fails nothing while the others make a quorum
        (f"us-east-0 {BAD}; us-east-1 eu-west-0", "", RUNNING),
        (f"us-east-0 {BAD}; us-east-1 eu-west-0", "spec.sync.quorum=2", RUNNING),
        (f"us-east-0 {BAD}; us-east-1 eu-west-0", "spec.sync.quorum=3", FAILED),
        # where learners wait for each other one that is left goes on (rule 10)
        (f"us-east-0 us-east-1 {BAD}; eu-west-0", PLAIN, RUNNING),
        (f"{EVERY} {BAD}", PLAIN, FAILED),
        (f"us-east-0 us-east-1 {BAD}", "", RUNNING),  # those of other installs may train
        (f"evaluator {BAD}", "", RUNNING),
        (f"evaluator {BAD}; syncer complete", "", "COMPLETE Trained"),
        (f"shard {BAD}", "", "FAILED BadInput"),
        ("shard exit=66", "", "FAILED RestoreRefused"),
        (f"{EVERY} exit=66", "", "FAILED RestoreRefused"),
        # one that has come back does not count
        (f"{EVERY} runs {BAD}; Joining us-east-0", "", RUNNING),
        (f"{EVERY} runs {BAD}; syncer serves", "", FAILED),
        (f"{EVERY} runs {BAD}", "", RUNNING),  # it may have joined
        (f"{EVERY} old {BAD}", "", RUNNING),  # an edit may be the fix
        (f"us-east-0 us-east-1 us-east-2 {BAD}", "", RUNNING),  # one is beyond the wanted ones
        *(
            (f"{EVERY} exit={int(code)}", "", RUNNING)  # these may be tried again
            for code in (ExitCode.BUG, ExitCode.TRY_AGAIN, ExitCode.SUPERSEDED, 1, 137)
        ),
        ("evaluator; syncer complete", "", "FINISHING Evaluating"),
        # it may have said of the final values what the answer at hand does not know yet
        ("evaluator exit=0; syncer complete", "", "FINISHING Evaluating"),
        ("evaluator exit=0; syncer measured", "", "COMPLETE Trained"),
        ("evaluator; syncer measured", "", "COMPLETE Trained"),
        # learners that have finished hold nothing though no shard can be asked
        (f"{EVERY} {DONE}", "", FINISHING),
        (f"{EVERY} {DONE}; syncer complete", "", "COMPLETE Trained"),
        (f"{EVERY} {DONE}; syncer serves", "", RUNNING),
        (f"us-east-0 exit=0; us-east-1 eu-west-0 {DONE}", "", RUNNING),  # its loop ended early
        (f"us-east-0; us-east-1 eu-west-0 {DONE}", "", RUNNING),
        ("", "", RUNNING),
        # what this version cannot do
        ("", "spec.syncer.shards=2", "REJECTED NotSupported: spec.export"),
    ],
)
def test_a_phase_follows_from_pods_and_registrar(text: str, change: str, words: str) -> None:
    found = decided(text, *([change] if change else []), final_seconds=1.0)
    assert found.startswith(words)


ALONE = "spec.regions=[{name: us-east}]"
TWO = "spec.regions=[{name: us-east, learners: 2}]"
ELASTIC = "spec.learner.hostsMin=1"


@pytest.mark.parametrize(
    ("first", "second", "changes", "words"),
    [
        *(
            (f"exit={one}", f"exit={other}", (TWO, f"spec.sync.quorum={quorum}"), words)
            for one, other in ((75, 64), (64, 75), (65, 64))
            for quorum, words in ((1, "RUNNING"), (2, "FAILED"))  # us-east-1 is left
        ),
        # those that are enough go on without a host, but not without host 0
        ("exit=75", "exit=64", (ALONE, ELASTIC), "RUNNING"),
        ("exit=64", "exit=75", (ALONE, ELASTIC), "FAILED"),
        ("exit=64", "exit=64", (ALONE, ELASTIC), "FAILED"),
        (DONE, "exit=75", (ALONE,), "FINISHING"),  # learners have finished when their heads have
        ("exit=75", DONE, (ALONE,), "RUNNING"),
    ],
)
def test_a_learner_of_several_hosts_ends_as_one(
    first: str, second: str, changes: tuple[str, ...], words: str
) -> None:
    text = f"us-east-0/0 {first}; us-east-0/1 {second}"
    assert decided(text, "spec.learner.hosts=2", *changes).startswith(words)


def test_a_host_that_once_ended_for_good_and_whose_learner_trains_is_back() -> None:
    pair, hosts = "us-east-0/0 runs exit=0; us-east-0/1 runs exit=64", "spec.learner.hosts=2"
    assert case_of(f"{pair}; Training us-east-0", hosts).exited == ()
    assert names(case_of(f"{pair}; Lost us-east-0", hosts).exited) == "us-east-0-1"
    assert case_of("us-east-7/* exit=64", hosts).exited == ()  # beyond the wanted number


def test_a_host_that_starts_again_is_a_problem_until_its_learner_trains() -> None:
    pair = "us-east-0/0 @n1 runs exit=75; us-east-0/1 @n2 runs exit=70"
    for state, told in (("Lost", 1), ("Training", 0)):
        case = case_of(f"{pair}; {state} us-east-0", "spec.learner.hosts=2")
        assert len(problems(case.seen.pods, Placement(), case.joined)[1]) == told
    lost = Placement(lost={"n2": NodeState.SILENT})
    assert problems(case.seen.pods, lost)[1] == ["tiny-us-east-0-1 is on n2, which is silent"]


def test_of_a_log_only_the_end_is_told() -> None:
    log = "\n".join(["a traceback", *(f"line {n}" for n in range(90)), "spec.data: is missing"])
    told = phase.last_words(learner("us-east-0", "n", exit_code=64, exit_message=log))
    assert "exit code 64: spec.data: is missing; " in told
    long = phase.last_words(learner("us-east-0", "n", exit_code=64, exit_message="x" * 4000))
    assert len(long) < 500


def test_an_evaluation_is_waited_for_only_so_long() -> None:
    text = "evaluator; syncer complete"
    assert decided(text, final_seconds=500.0).startswith("COMPLETE")


def at_home(before: Before, registrar: pb.StatusReply | None = None, *changes: str) -> str:
    of = job("spec.syncer.shards=1", *changes)
    found = phase.phase_at_home(of, before, (), registrar, None)
    return f"{found.kind.name} {found.reason}: {found.message}"


def test_complete_names_the_learners_that_made_no_step() -> None:
    final = reply(us_east_0="Left", us_east_1="Left")
    final.state, final.epoch = pb.SHARD_COMPLETE, 1
    final.slots[1].tokens = final.slots[1].step_seconds = 0
    assert at_home(Before(), final).endswith("; us-east-1, eu-west-0 made no step")
    final.epoch = 2  # a registrar that started again knows only who has joined it since
    assert "no step" not in at_home(Before(), final)


def test_what_earlier_passes_wrote_stays() -> None:
    complete = Condition(type="Complete", status="True", reason="Trained", message="to step 600")
    failed = Condition(type="Failed", status="True", reason="OfALaterVersion")
    assert at_home(Before(complete=complete)).startswith("COMPLETE")
    assert at_home(Before(failed=failed)).startswith("FAILED")
    assert at_home(Before(finished=True)).startswith("FINISHING")  # their pods are gone now
    assert at_home(Before(finished=True), reply()).startswith("RUNNING")
    said = Condition(type="Progressing", status="True", reason="LearnersFinished", message="")
    assert phase.before(Status(conditions=[said]), 0.0).finished
    assert not phase.before(Status(), 0.0).finished


def test_the_deadline_does_not_run_while_suspended() -> None:
    late, before = "spec.activeDeadlineSeconds=60", Before(running_seconds=61.0)
    assert at_home(before, None, late).startswith("FAILED DeadlineExceeded")
    assert at_home(before, None, late, "spec.suspend=true").startswith("SUSPENDED")


def test_shards_run_on_while_the_job_finishes_and_learners_do_not() -> None:
    found = case_of(f"{EVERY} {DONE}").phase
    runs = phase.running(found, Before(), keeps_shards=False)
    assert (runs.learners, runs.shards) == (False, True)
