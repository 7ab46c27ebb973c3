"""Sessions and lost nodes: a learner of several hosts is judged and replaced as one."""

import json
from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import (
    Observation,
    Pod,
    Replaced,
    Replacement,
    Workload,
    by_name,
    with_hosts,
)
from atoll_operator.kube.plan import pauses
from atoll_operator.kube.plan.exclusions import exclusions
from atoll_operator.kube.plan.replacements import counts, works_again
from atoll_operator.kube.plan.sessions import idle, joined, judge, to_name, to_retire
from unit.kube.cluster_values import hosts, job, node, reply, shard
from unit.kube.hosts_side import FOLLOWER, HEAD, PAIR, observed, of_hosts
from unit.kube.planner_side import CHANGES, NOW, answers, planned, seen
from unit.kube.test_replacements import choose
from unit.kube.test_suspects import settled

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
    waits = [HEAD, replace(FOLLOWER, ready=False)]  # its learner may train without it
    assert not works_again(lost, waits, trains)
    found = observed(*PAIR, remembered=answers(reply(us_east_0="Training")))
    assert planned(found).training == {HEAD.uid, FOLLOWER.uid}


def test_a_host_that_is_lost_while_the_job_is_suspended_is_removed_and_moved_nowhere() -> None:
    down = {"n1": node("n1"), "n2": node("n2", silent=30)}
    noted = spent(0, 20)
    for replicas, count, said in ((2, 0, None), (0, 1, "is removed")):
        sets = (replace(noted, replicas=replicas, excluded=("n2",)),)
        found = observed(*PAIR, sets=sets, nodes=down, remembered=answers(reply(us_east_0="Left")))
        changes = ("spec.suspend=true",) if said else ()
        moved = planned(replace(found, job=job(*CHANGES, *changes))).replace
        assert len(moved) == count
        assert all(said in each.event.message for each in moved if said)
    placement = choose(PAIR, NODES, dead=[FOLLOWER.uid])
    for replicas, used in ((2, 1), (0, 0)):
        own = of_hosts(replicas=replicas)
        text = exclusions("tiny", {own.name: own}, placement, PAIR, now=NOW).replaced[own.name]
        assert len(json.loads(text or "{}")) == used


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
