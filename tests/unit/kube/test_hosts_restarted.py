"""A new template, crashes and hangs: a learner of several hosts is restarted as one."""

from dataclasses import replace
from typing import Any

from atoll_operator.api.parts import Failure
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.observation import (
    Pod,
    Workload,
    by_name,
)
from atoll_operator.kube.plan import restarts
from atoll_operator.kube.plan.rollout import Roll, counted, next_to_restart
from atoll_operator.kube.plan.suspects import HUNG_SECONDS, SUSPECTS_MAX, Scene, crashing, hung
from unit.kube.cluster_values import hosts, node, reply
from unit.kube.hosts_side import FOLLOWER, HEAD, OTHER, PAIR, observed, of_hosts
from unit.kube.planner_side import NOW, answers, planned

OLD = [
    *hosts("us-east-0", "n1", "n2", template="old"),
    *hosts("us-east-1", "n3", "n4", template="old"),
    *hosts("eu-west-0", "m1", "m2", template="old"),
]

SLOTS = ("us-east-0", "us-east-1", "eu-west-0")


def restarted(*pods: Pod, training: tuple[str, ...] = SLOTS, **more: Any) -> list[str]:
    fields: dict[str, Any] = {"quorum": 2, "now": NOW, "hosts_min": 2} | more
    fields |= {"share": max(0, len(SLOTS) - fields["quorum"]), "desired": len(SLOTS)}
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


def test_a_learner_that_trains_with_fewer_hosts_than_asked_for_is_restarted_in_its_turn() -> None:
    waits = [replace(pod, node="") for pod in (OLD[1], OLD[3])]
    assert restarted(OLD[0], waits[0], OLD[2], waits[1]) == ["us-east-0-0", "us-east-0-1"]
    assert len(restarted(OLD[0], waits[0], OLD[2], waits[1], training=())) == 4


def test_a_learner_counts_for_the_quorum_while_none_of_its_hosts_goes() -> None:
    slots = reply(us_east_0="Training", us_east_1="Training").slots
    others = hosts("us-east-1", "n3", "n4", terminating=(False, True))
    assert counted(slots, [*PAIR, *others], lambda _: True) == {"us-east-0"}
    assert counted(slots, [replace(HEAD, uid="new"), FOLLOWER], lambda _: True) == frozenset()


def rolled(*pods: Pod, **more: Any) -> list[str]:
    """Pods that an edit restarts, in a pass."""
    registrar = more.pop("registrar", reply(us_east_0="Training", us_east_1="Training"))
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


def test_an_edit_reaches_the_hosts_of_a_learner_one_of_which_cannot_be_had() -> None:
    kept = [OLD[0], replace(OLD[1], terminating=True), *OLD[2:4]]  # its node has not let it go
    down = {"n2": node("n2", ready=False, not_ready_seconds=900.0)}
    for state in ("Lost", "Training"):
        registrar = reply(us_east_0=state, us_east_1="Training")
        assert rolled(*kept, nodes=down, registrar=registrar) == ["tiny-us-east-0-0"]
    head = [replace(OLD[0], terminating=True), *OLD[1:4]]
    other = ["tiny-us-east-1-0", "tiny-us-east-1-1"]
    assert rolled(*head, nodes={"n1": node("n1", ready=False)}) == other


def test_in_a_storm_an_edit_restarts_no_host_of_a_learner_with_one_on_a_lost_node() -> None:
    kept = [OLD[0], replace(OLD[1], terminating=True)]
    storm = {name: node(name, ready=False) for name in ("n2", "n3", "n4")}
    assert rolled(*kept, nodes=storm, registrar=reply(us_east_0="Lost")) == []


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
