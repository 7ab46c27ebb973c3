"""A learner of several hosts is judged, replaced, restarted and counted as one learner."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.parts import Failure
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.observation import (
    Observation,
    Pod,
    Replaced,
    Replacement,
    Workload,
    by_name,
    with_hosts,
)
from atoll_operator.kube.plan import pauses, phase, restarts
from atoll_operator.kube.plan.changes import Changes
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.problems import problems
from atoll_operator.kube.plan.replacements import Placement, counts, works_again
from atoll_operator.kube.plan.rollout import Roll, counted, next_to_restart
from atoll_operator.kube.plan.sessions import idle, joined, judge, to_name, to_retire
from atoll_operator.kube.plan.situation import situation_of
from atoll_operator.kube.plan.suspects import HUNG_SECONDS, SUSPECTS_MAX, Scene, crashing, hung
from atoll_protos.exits import FINISHED
from unit.kube.cluster_values import SETTINGS, hosts, job, learner, node, reply, shard
from unit.kube.other_cluster import decided, heard, there
from unit.kube.test_lifecycle import said
from unit.kube.test_pauses import steady
from unit.kube.test_planner import CHANGES, NOW, answers, planned, seen
from unit.kube.test_replacements import choose
from unit.kube.test_suspects import settled

PAIR = hosts("us-east-0", "n1", "n2")
HEAD, FOLLOWER = PAIR
OTHER = learner("us-east-1", "n3")


def of_hosts(name: str = "us-east-0", **more: Any) -> Workload:
    """The StatefulSet of one learner."""
    fields: dict[str, Any] = {"replicas": 2, "observed": True, "applied": "", "template": "new"}
    return Workload(name=f"tiny-{name}", kind="StatefulSet", **(fields | more))


def observed(*pods: Pod, sets: tuple[Workload, ...] = (), **more: Any) -> Observation:
    """A job with two learners of two hosts in us-east."""
    found = seen("spec.steps=600", pods=(*pods, shard(0, "n3")), **more)
    own = by_name(sets or (of_hosts("us-east-0"), of_hosts("us-east-1")))
    return replace(found, workloads={**found.workloads, **own})


# ---------------------------------------------------------------- sessions and words


def dead(registrar: pb.StatusReply, absent: float = 0.0) -> set[int]:
    """Hosts of the pair that count as dead."""
    found = judge(PAIR, registrar, {"us-east-0": absent}, {})
    return {pod.host for pod in PAIR if pod.uid in found.dead}


def test_a_host_without_the_session_is_dead_when_its_learner_does_not_train() -> None:
    assert dead(reply(us_east_0="Training")) == set()
    assert dead(reply(us_east_0="Lost")) == {0, 1}
    for state in ("Stalled", "Joining", "Recovering"):
        assert dead(reply(us_east_0=state)) == {1}


def test_a_host_whose_learner_has_stopped_reporting_is_dead_as_its_head_is() -> None:
    registrar = reply(us_east_0="Training")
    registrar.slots[0].seconds_since_report = 11.0
    assert dead(registrar) == {0, 1}


def test_all_hosts_of_a_slot_that_a_restarted_registrar_does_not_show_are_dead_after_a_while() -> (
    None
):
    assert dead(reply(), absent=9.0) == set()
    assert dead(reply(), absent=10.0) == {0, 1}


def test_a_learner_that_trains_with_fewer_hosts_says_nothing_of_the_others() -> None:
    trains = judge(PAIR, reply(us_east_0="Training"), {}, {}, needs_all=False)
    assert (trains.dead, trains.unseen) == (frozenset(), frozenset({FOLLOWER.uid}))
    lost = judge(PAIR, reply(us_east_0="Stalled"), {}, {}, needs_all=False)
    assert (lost.dead, lost.unseen) == (frozenset({FOLLOWER.uid}), frozenset())


def test_a_host_that_its_learner_does_without_is_replaced_when_its_node_stays_away() -> None:
    elastic = ("spec.learner.hosts=2", "spec.learner.hostsMin=1")
    registrar = reply(us_east_0="Training", us_east_1="Training")
    for changes, seconds, count in ((elastic, 20.0, 1), (elastic, 19.0, 0), ((), 20.0, 0)):
        down = {"n1": node("n1"), "n2": node("n2", ready=False, not_ready_seconds=seconds)}
        found = observed(
            *PAIR, sets=(of_hosts(excluded=("n2",)),), nodes=down, remembered=answers(registrar)
        )
        found = replace(found, job=job(*CHANGES, "spec.learner.hosts=2", *changes))
        assert len(planned(found).replace) == count


def test_the_session_of_another_pod_says_nothing_for_the_head_alone() -> None:
    registrar = reply(us_east_0="Training")
    registrar.slots[0].uid = "another"
    assert dead(registrar) == {0}


def test_no_word_is_said_for_a_host_that_is_not_the_heads() -> None:
    registrar = reply(us_east_0="Lost")
    registrar.slots[0].owner_word = 3
    registrar.slots[0].owner_uid = "before"
    assert to_name(PAIR, registrar, {}) == [(HEAD, 3)]
    assert to_name(PAIR, reply(), {"us-east-0": 60.0}) == [(HEAD, None)]
    assert (to_retire(HEAD, registrar), to_retire(FOLLOWER, registrar)) == (3, None)


def test_a_host_has_a_session_when_its_head_has_one() -> None:
    assert joined(reply(us_east_0="Stalled"), PAIR) == frozenset({HEAD.uid, FOLLOWER.uid})
    assert joined(reply(us_east_0="Lost"), PAIR) == frozenset()
    assert joined(reply(us_east_1="Training"), PAIR) == frozenset({"uid-us-east-1"})
    assert with_hosts(frozenset({FOLLOWER.uid}), PAIR) == {FOLLOWER.uid}


def idles(registrar: pb.StatusReply, *pods: Pod, absent: float = 0.0) -> bool:
    return idle(pods, [registrar], {"us-east-0": absent}) == {"us-east-0"}


def test_a_learner_is_idle_by_the_session_of_its_head() -> None:
    for state in ("Training", "Stalled"):
        assert not idles(reply(us_east_0=state), *PAIR)
        assert not idles(reply(us_east_0=state), FOLLOWER, HEAD)
        assert idles(reply(us_east_0=state), FOLLOWER)  # the pod of its head is gone
    assert idles(reply(us_east_0="Lost"), *PAIR)
    assert not idles(reply(), *PAIR, absent=9.0)
    assert idles(reply(), *PAIR, absent=10.0)


# ---------------------------------------------------------------- lost nodes

NODES = [node("n1"), node("n2", silent=30), node("n3"), node("n4")]


def replaced(registrar: pb.StatusReply, *nodes: Any) -> list[str]:
    """Reasons for which hosts of the pair are made again."""
    found = judge(PAIR, registrar, {}, {})
    return [each.reason for each in choose(PAIR, nodes or NODES, dead=[*found.dead]).replace]


def test_a_host_on_a_lost_node_is_replaced_while_its_learner_does_not_train() -> None:
    assert replaced(reply(us_east_0="Training")) == []
    for state in ("Stalled", "Lost", "Joining"):
        (reason,) = replaced(reply(us_east_0=state))
        assert reason == "its node n2 is silent, and its learner does not train"


def test_hosts_that_are_lost_together_are_replaced_together() -> None:
    lost = [node("n1", silent=30), *NODES[1:]]
    assert len(replaced(reply(us_east_0="Lost"), *lost)) == 2
    assert len(replaced(reply(us_east_0="Stalled"), *lost)) == 1  # the session of the head lives


def test_a_lost_host_is_replaced_without_a_word_and_a_lost_head_with_one() -> None:
    registrar = reply(us_east_0="Lost", us_east_1="Training")
    down = {"n1": node("n1", silent=30), "n2": node("n2", silent=30), "n3": node("n3")}
    live = of_hosts(excluded=("n1", "n2"))
    found = observed(*PAIR, sets=(live,), nodes=down, remembered=answers(registrar))
    first, second = planned(found).replace
    assert (first.pod, first.retire_word) == (HEAD, 0)
    assert (second.pod, second.retire_word) == (FOLLOWER, None)


def test_a_host_waits_until_the_set_of_its_own_learner_excludes_the_node() -> None:
    registrar = reply(us_east_0="Stalled", us_east_1="Training")
    down = {"n1": node("n1"), "n2": node("n2", silent=30), "n3": node("n3")}
    for excluded, found in (((), 0), (("n2",), 1)):
        sets = (of_hosts(excluded=excluded), of_hosts("us-east-1", excluded=("n2",)))
        case = observed(*PAIR, sets=sets, nodes=down, remembered=answers(registrar))
        assert len(planned(case).replace) == found


def spent(*counts: int) -> Workload:
    """A set whose hosts have been replaced so often today."""
    noted = {
        host: Replaced(count=n, uid="old", since=int(NOW) - 60, recent=n)
        for host, n in enumerate(counts)
    }
    return of_hosts(replaced=noted)


def test_a_learner_has_used_as_many_replacements_as_the_host_that_was_replaced_most() -> None:
    def used(*numbers: int) -> dict[str, int]:
        return counts("tiny", PAIR, by_name([spent(*numbers)]), now=NOW)

    assert used(1, 1) == {"tiny-us-east-0": 1}  # they failed together, or each once
    assert used(0, 3) == {"tiny-us-east-0": 3}
    under_way = {1: Replaced(count=3, uid=FOLLOWER.uid, since=int(NOW) - 60, recent=3)}
    assert counts("tiny", PAIR, by_name([of_hosts(replaced=under_way)]), now=NOW) == {
        "tiny-us-east-0": 2
    }


def test_a_learner_without_budget_is_named_once_and_none_of_its_hosts_is_replaced() -> None:
    lost = [node("n1", silent=30), *NODES[1:]]
    found = choose(PAIR, lost, dead=[HEAD.uid, FOLLOWER.uid], counts={"tiny-us-east-0": 2}, limit=2)
    assert (found.replace, found.exhausted) == ((), ("tiny-us-east-0",))


def test_a_replaced_host_works_again_when_its_learner_trains() -> None:
    lost = Replacement(role="learner", name=FOLLOWER.name, old_uid="old", lost_at=0.0)
    trains = with_hosts(frozenset({HEAD.uid}), PAIR)
    assert works_again(lost, PAIR, trains)
    assert not works_again(lost, PAIR, with_hosts(frozenset({"uid-us-east-1"}), PAIR))
    assert not works_again(replace(lost, old_uid=FOLLOWER.uid), PAIR, trains)
    found = observed(*PAIR, remembered=answers(reply(us_east_0="Training")))
    assert planned(found).training == {HEAD.uid, FOLLOWER.uid}


# ---------------------------------------------------------------- a new template

OLD = [
    *hosts("us-east-0", "n1", "n2", template="old"),
    *hosts("us-east-1", "n3", "n4", template="old"),
    *hosts("eu-west-0", "m1", "m2", template="old"),
]
SLOTS = ("us-east-0", "us-east-1", "eu-west-0")


def restarted(*pods: Pod, training: tuple[str, ...] = SLOTS, **more: Any) -> list[str]:
    fields: dict[str, Any] = {"quorum": 2, "now": NOW, "hosts_min": 2} | more
    roll = Roll(
        regions=("us-east", "eu-west"), pods=pods, wanted=dict.fromkeys(SLOTS, "new"),
        training=frozenset(training), **fields,
    )  # fmt: skip
    return [pod.name.removeprefix("tiny-") for pod in next_to_restart(roll)]


def renewed(*pods: Pod, age: float = 3600.0) -> list[Pod]:
    return [replace(pod, template="new", made_at=NOW - age) for pod in pods]


def test_all_hosts_of_a_learner_are_restarted_together() -> None:
    assert restarted(*OLD) == ["us-east-0-0", "us-east-0-1"]
    assert len(restarted(*OLD, quorum=1)) == 4


def test_a_learner_whose_lost_host_came_back_with_a_new_template_gets_it_whole_in_its_turn() -> (
    None
):
    (new,) = renewed(OLD[1])
    assert restarted(OLD[0], new, *OLD[2:]) == ["us-east-0-0"]


def test_the_next_learner_waits_until_all_hosts_of_the_one_before_train() -> None:
    before, after = ("us-east-1", "eu-west-0"), ["us-east-1-0", "us-east-1-1"]
    young = renewed(*OLD[:2], age=10.0)
    assert restarted(*young, *OLD[2:], training=before) == []
    assert restarted(*young, *OLD[2:]) == after
    assert restarted(young[0], *OLD[2:], training=before) == []  # its other pod is being made
    still = renewed(*OLD[:2])
    assert restarted(*still, *OLD[2:], training=before) == []  # its template may be wrong
    waits = [still[0], replace(still[1], node="")]  # for a node: that is no fault of the template
    assert restarted(*waits, *OLD[2:], training=before) == after


def test_a_learner_with_too_few_running_hosts_is_restarted_whatever_the_pace() -> None:
    crashes = replace(OLD[5], waiting="CrashLoopBackOff", exit_code=1)
    found = restarted(*OLD[:5], crashes, training=SLOTS[:2], serving=False)
    assert found == ["eu-west-0-0", "eu-west-0-1"]
    assert restarted(*OLD[:5], training=SLOTS[:2], serving=False) == ["eu-west-0-0"]
    idle = frozenset({"eu-west-0"})
    assert restarted(*OLD, training=SLOTS[:2], idle=idle) == ["eu-west-0-0", "eu-west-0-1"]


def test_a_learner_that_can_do_with_fewer_hosts_is_not_taken_for_idle() -> None:
    crashes = replace(OLD[1], waiting="CrashLoopBackOff", exit_code=1)
    assert restarted(OLD[0], crashes, training=(), serving=False, hosts_min=1) == []
    head = replace(OLD[0], waiting="CrashLoopBackOff", exit_code=1)
    found = restarted(head, OLD[1], training=(), serving=False, hosts_min=1)
    assert found == ["us-east-0-0", "us-east-0-1"]


def test_a_learner_counts_for_the_quorum_while_none_of_its_hosts_goes() -> None:
    slots = reply(us_east_0="Training", us_east_1="Training").slots
    others = hosts("us-east-1", "n3", "n4", terminating=(False, True))
    assert counted(slots, [*PAIR, *others], lambda _: True) == {"us-east-0"}
    assert counted(slots, [replace(HEAD, uid="new"), FOLLOWER], lambda _: True) == frozenset()


def rolled(*pods: Pod, **more: Any) -> list[str]:
    """Pods that an edit restarts, in a pass."""
    registrar = reply(us_east_0="Training", us_east_1="Training")
    nodes = {name: node(name) for name in ("n1", "n2", "n3", "n4")} | more.pop("nodes", {})
    found = observed(*pods, remembered=answers(registrar), nodes=nodes, **more)
    return [each.name for each in planned(found).restart]


def test_an_edit_restarts_one_learner_with_all_its_hosts() -> None:
    pods = OLD[:4]
    assert rolled(*pods) == ["tiny-us-east-0-0", "tiny-us-east-0-1"]
    unseen = (of_hosts("us-east-0", observed=False), of_hosts("us-east-1"))
    assert rolled(*pods, sets=unseen) == ["tiny-us-east-1-0", "tiny-us-east-1-1"]


def test_a_learner_with_a_host_on_a_lost_node_is_not_restarted_for_an_edit() -> None:
    down = {"n2": node("n2", silent=30)}
    assert rolled(*OLD[:4], nodes=down) == ["tiny-us-east-1-0", "tiny-us-east-1-1"]


# ---------------------------------------------------------------- crashes, and what hangs

CRASHES: dict[str, Any] = {"waiting": "CrashLoopBackOff", "restarts": 5, "template": "new"}


def suspected(*pods: Pod, used: int = 0, sets: tuple[Workload, ...] = ()) -> tuple[list[str], int]:
    """Pods that are moved off their nodes, and how many learners have no budget left."""
    found = crashing(
        Scene(
            job="tiny", pods=[*pods, OTHER], training=frozenset({OTHER.uid}),
            workloads=by_name(sets or (of_hosts(), of_hosts("us-east-1"))),
            region_nodes={"us-east": [node(f"n{i}") for i in range(1, 6)]},
            counts={"tiny-us-east-0": used}, failure=Failure(max_replacements_per_slot=20), now=NOW,
        )
    )  # fmt: skip
    return [pod.name for pod in found.pods], len(found.exhausted)


def test_the_host_whose_own_process_crashes_is_moved_and_not_those_that_lost_it() -> None:
    pair = hosts("us-east-0", "n1", "n2", exit_code=(75, 139), **CRASHES)
    assert suspected(*pair) == (["tiny-us-east-0-1"], 0)
    assert suspected(*(replace(pod, exit_code=75) for pod in pair)) == ([], 0)
    assert suspected(*pair, used=20) == ([], 1)


def test_only_the_crashes_of_its_own_process_count_for_a_host() -> None:
    memory = Memory(uid="u")

    def noted(restarts: int, *codes: int | None, runs: bool = False) -> dict[str, int]:
        pods = hosts("us-east-0", "n1", "n2", exit_code=codes, restarts=restarts, runs=runs)
        return dict(memory.read(1, pods, 100.0).crashes)

    assert noted(0, None, None, runs=True) == {HEAD.uid: 0, FOLLOWER.uid: 0}
    for starts, codes, crashes in (
        (0, (75, 139), (0, 1)), (1, (139, 75), (1, 1)), (2, (75, 139), (1, 2)),
        (3, (64, 137), (1, 2)), (4, (75, 70), (1, 3)),
    ):  # fmt: skip
        for _ in range(2):  # an end counts once, however often it is seen
            assert noted(starts, *codes) == {HEAD.uid: crashes[0], FOLLOWER.uid: crashes[1]}
        assert noted(starts + 1, *codes, runs=True)[FOLLOWER.uid] == crashes[1]
    assert memory.read(1, [], 200.0).crashes == {}


def test_a_host_that_has_crashed_once_after_four_crashes_of_another_stays_where_it_is() -> None:
    pair = [
        replace(pod, template=of_hosts().template, waiting="CrashLoopBackOff", restarts=5)
        for pod in hosts("us-east-0", "n1", "n2", exit_code=(139, 75))
    ]
    registrar = reply(us_east_0="Lost", us_east_1="Training")
    for crashes, moved in ((1, []), (5, ["tiny-us-east-0-0"])):
        counted_ = answers(registrar, crashes={HEAD.uid: crashes, FOLLOWER.uid: 4})
        others = hosts("us-east-1", "n3", "n4", template="new")
        sets = (of_hosts(excluded=("n1",)), of_hosts("us-east-1"))
        found = planned(observed(*pair, *others, sets=sets, remembered=counted_)).delete
        assert [each.name for each in found] == moved
        assert all("crashed 5 times" in each.reason for each in found)


def test_a_region_has_few_suspected_nodes_however_many_sets_its_learners_have() -> None:
    pair = hosts("us-east-0", "n1", "n2", exit_code=(75, 139), **CRASHES)
    for number, moved in ((SUSPECTS_MAX - 1, 1), (SUSPECTS_MAX, 0)):
        known = {f"o{n}": int(NOW) - 60 for n in range(number)}
        sets = (of_hosts(), of_hosts("us-east-1", suspects=known))
        others = hosts("us-east-1", "n3", "n4")
        assert len(suspected(*pair, *others, sets=sets)[0]) == moved


def test_every_host_of_a_learner_that_hangs_is_restarted() -> None:
    registrar = reply(us_east_0="Stalled", us_east_1="Training")
    assert hung(PAIR, registrar, {HEAD.uid: HUNG_SECONDS - 1}) == ()
    assert hung(PAIR, registrar, {HEAD.uid: HUNG_SECONDS}) == (HEAD, FOLLOWER)
    stalled = answers(registrar, stalled_seconds={HEAD.uid: HUNG_SECONDS})
    pods = [replace(pod, template="new", runs=True) for pod in PAIR]
    found = planned(observed(*pods, remembered=stalled)).delete
    assert [each.name for each in found] == ["tiny-us-east-0-0", "tiny-us-east-0-1"]
    assert {each.reason for each in found} == {restarts.HUNG}
    assert [each.event is None for each in found] == [False, True]  # it is told once


def test_a_learner_is_hung_by_the_time_that_its_slot_stalls() -> None:
    memory = Memory(uid="u")
    memory.take([reply(us_east_0="Stalled")], 100.0, "then")
    memory.read(1, PAIR, 100.0)
    memory.take([reply(us_east_0="Stalled")], 160.0, "then")
    assert memory.read(1, PAIR, 160.0).stalled_seconds == {HEAD.uid: 60.0}


# ---------------------------------------------------------------- ends


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


# ---------------------------------------------------------------- from the loss to the new pod

TWO_HOSTS = "spec.learner.hosts=2"


def of_two_hosts(state: str, **silent: float) -> Observation:
    """The job as the operator makes it for learners of two hosts, some of whose nodes are lost."""
    own = seen(TWO_HOSTS).workloads
    nodes = {"us-east-0": ("n1", "n2"), "us-east-1": ("n3", "n4"), "eu-west-0": ("n5", "n6")}
    pods = [
        pod
        for name, found in nodes.items()
        for pod in hosts(name, *found, template=own[f"tiny-{name}"].template)
    ]
    every = {name: node(name, silent=silent.get(name, 1.0)) for name in sum(nodes.values(), ())}
    registrar = reply(us_east_0=state, us_east_1="Training", eu_west_0="Training")
    return seen(TWO_HOSTS, pods=(*pods, shard(0, "n3")), nodes=every, remembered=answers(registrar))


def test_a_lost_host_moves_from_its_node_alone_and_its_head_keeps_the_slot() -> None:
    found = of_two_hosts("Stalled", n2=30.0)
    first = planned(found)
    changed = [(each["kind"], each["metadata"]["name"]) for each in first.apply]
    assert changed == [("StatefulSet", "tiny-us-east-0")]  # its own set keeps off the node
    assert first.replace == ()
    second = planned(settled(found))
    (gone,) = second.replace
    assert (gone.pod.name, gone.node, gone.retire_word) == ("tiny-us-east-0-1", "n2", None)
    assert (second.owners, second.delete, second.restart) == ((), (), ())


def test_what_is_left_on_a_lost_node_of_a_learner_that_is_not_asked_for_is_removed_at_once() -> (
    None
):
    beyond = hosts("us-east-7", "n1", "n2", terminating=True)
    down = {"n1": node("n1"), "n2": node("n2", silent=30.0)}
    memory = answers(reply(), absent_seconds={"us-east-7": 60.0})
    found = planned(seen(TWO_HOSTS, pods=tuple(beyond), nodes=down, remembered=memory))
    (gone,) = found.replace
    assert gone.pod == beyond[1]
    assert gone.event.message.startswith("tiny-us-east-7-1 is removed: its node n2 is silent")
    assert found.pause_seconds != pauses.AGAIN_SECONDS
    wanted = hosts("us-east-1", "n1", "n2")  # its set is about to be made, with the node excluded
    memory = answers(reply(), absent_seconds={"us-east-1": 60.0})
    none = seen(TWO_HOSTS, pods=tuple(wanted), nodes=down, remembered=memory, children=[])
    assert planned(none).replace == ()


def test_a_lost_host_of_a_learner_that_trains_stays() -> None:
    found = of_two_hosts("Training", n2=30.0)
    assert (planned(found).apply, planned(found).replace) == ((), ())


def test_both_lost_hosts_move_in_one_pass_and_only_the_head_loses_its_word() -> None:
    found = settled(of_two_hosts("Lost", n1=30.0, n2=30.0))
    words = {each.pod.name: each.retire_word for each in planned(found).replace}
    assert words == {"tiny-us-east-0-0": 0, "tiny-us-east-0-1": None}
    live = found.workloads["tiny-us-east-0"]
    assert {host: each.recent for host, each in live.replaced.items()} == {0: 1, 1: 1}
    assert counts("tiny", found.pods, found.workloads, NOW)["tiny-us-east-0"] == 0  # under way
