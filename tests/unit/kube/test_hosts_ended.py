"""A learner of several hosts ends, fails, finishes and is steady as one."""

from dataclasses import replace

import pytest

from atoll_operator.kube.observation import (
    Observation,
    Pod,
)
from atoll_operator.kube.plan import pauses, phase
from atoll_operator.kube.plan.changes import Changes
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.problems import problems
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.plan.sessions import joined
from atoll_operator.kube.plan.situation import situation_of
from atoll_protos.exits import FINISHED
from unit.kube.cluster_values import SETTINGS, hosts, job, reply
from unit.kube.hosts_side import of_hosts
from unit.kube.other_cluster import decided, heard, there
from unit.kube.planner_side import CHANGES, NOW
from unit.kube.test_lifecycle import said
from unit.kube.test_pauses import steady


def ended(*codes: int | None, words: str = "") -> list[Pod]:
    found = hosts("us-east-0", "n1", "n2", exit_code=codes, runs=False)
    return [replace(pod, exit_message=words) for pod in found]


@pytest.mark.parametrize("codes", [(75, 64), (64, 75), (65, 64)])
def test_a_host_that_ends_for_good_ends_its_learner_once(codes: tuple[int, int]) -> None:
    of = job("spec.regions=[{name: us-east, learners: 2}]", "spec.sync.quorum=1")
    exited = phase.exited_for_good(of, ended(*codes), frozenset(), {})
    assert exited
    assert phase.no_quorum_left(of, exited) is None  # us-east-1 is left
    both = job("spec.regions=[{name: us-east, learners: 2}]", "spec.sync.quorum=2")
    found = phase.no_quorum_left(both, exited)
    assert found is not None
    assert "ended with exit code 6" in found.message


@pytest.mark.parametrize(
    ("codes", "fails"), [((75, 64), False), ((64, 75), True), ((64, 64), True)]
)
def test_a_host_that_ends_for_good_leaves_those_that_are_enough(
    codes: tuple[int, int], fails: bool
) -> None:
    of = job("spec.regions=[{name: us-east}]", "spec.learner.hosts=2", "spec.learner.hostsMin=1")
    exited = phase.exited_for_good(of, ended(*codes), frozenset(), {})
    assert exited
    assert (phase.no_quorum_left(of, exited) is not None) == fails


def test_a_host_that_once_ended_for_good_and_whose_learner_trains_is_back() -> None:
    pair = [replace(pod, runs=True) for pod in ended(0, 64)]
    session = joined(reply(us_east_0="Training"), pair)
    assert phase.exited_for_good(job(), pair, session, {}) == ()
    assert phase.exited_for_good(job(), pair, frozenset(), {}) == (pair[1],)


def test_hosts_of_learners_beyond_the_wanted_number_have_not_failed() -> None:
    beyond = hosts("us-east-7", "n1", "n2", exit_code=64)
    assert phase.exited_for_good(job(), beyond, frozenset(), {}) == ()


def test_learners_have_finished_when_their_heads_have() -> None:
    of = job(*CHANGES, "spec.regions=[{name: us-east}]")
    first, second = ended(0, 75, words=FINISHED)
    pair = [first, replace(second, exit_message="")]
    found = phase.decide(of, phase.Before(), pair, None, None)
    assert found.reason == phase.LEARNERS_FINISHED
    swapped = [replace(first, exit_code=75), replace(second, exit_code=0)]
    assert phase.decide(of, phase.Before(), swapped, None, None).reason == "Running"


def test_a_host_that_starts_again_is_a_problem_until_its_learner_trains() -> None:
    pair = [replace(pod, runs=True) for pod in ended(75, 70)]
    for state, told in (("Lost", 1), ("Training", 0)):
        found = problems(pair, Placement(), joined(reply(us_east_0=state), pair))[1]
        assert len(found) == told
    lost = Placement(lost={"n2": NodeState.SILENT})
    assert problems(pair, lost)[1] == ["tiny-us-east-0-1 is on n2, which is silent"]


def test_the_learners_of_a_cluster_without_the_syncer_have_finished_when_their_heads_have() -> None:
    def decided_of(first: int, second: int) -> tuple[str, str]:
        pair = hosts("eu-west-0", "n1", "n2", exit_code=(first, second))
        pods = tuple(replace(p, exit_message="" if p.exit_code else FINISHED) for p in pair)
        one = there(pods=pods, remembered=heard(None, silent=30.0))
        return said(decided(one), "Progressing")

    assert decided_of(0, 75) == ("True", "LearnersFinished")
    assert decided_of(75, 0)[1] != "LearnersFinished"


def test_a_job_of_learners_of_several_hosts_can_be_steady() -> None:
    one = steady()
    template = one.workloads["tiny-us-east"].template
    pair = hosts("us-east-0", "n1", "n2", template=template)
    others = [pod for pod in one.pods if pod.slot != "us-east-0"]
    sets = {
        "tiny-us-east-0": of_hosts(template=template),
        "tiny-us-east": replace(one.workloads["tiny-us-east"], replicas=1),
    }
    several = replace(one, pods=(*pair, *others), workloads={**one.workloads, **sets})
    assert is_steady(several)
    assert not is_steady(replace(several, pods=(pair[0], *others)))
    assert not is_steady(replace(several, pods=(pair[0], replace(pair[1], ready=False), *others)))


def is_steady(found: Observation) -> bool:
    case = situation_of(found, job(*CHANGES), SETTINGS, NOW)
    return pauses.is_steady(case, pauses.Doings(children=Changes(), writes=False))
