"""A new template reaches pods region by region, keeping the quorum."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observed.observation import OLD_TEMPLATE
from atoll_operator.kube.plan.restarts import ShardProcess, counted, shards_to_hold
from unit.kube.cluster_values import SETTINGS, hosts, learner, reply
from unit.kube.scenes import decided, names

EVERY, ALL = "us-east-0 us-east-1 eu-west-0 old", "Training all"
LATER = "us-east-1 eu-west-0 old; Training us-east-1 eu-west-0"
LOOPS = "waits=CrashLoopBackOff"
DELETED = ("tiny-us-east-0", OLD_TEMPLATE)
US_EAST = replace(SETTINGS, regions=("us-east",))
EU_WEST = replace(SETTINGS, regions=("eu-west",))
THREE = "spec.regions=[{name: us-east, learners: 3}, {name: eu-west}]"


@pytest.mark.parametrize(
    ("scene", "quorum", "restarted"),
    [
        pytest.param(f"{EVERY}; {ALL}", 2, "us-east-0", id="what the first region can spare"),
        (f"{EVERY}; {ALL}", 1, "us-east-0 us-east-1"),
        pytest.param(f"{EVERY}; {ALL}", 3, "us-east-0", id="one where all learners are the quorum"),
        (f"{EVERY}; {ALL}; syncer recovering", 1, ""),
        pytest.param(
            "us-east-0 us-east-1 aged=10; eu-west-0 old; Training us-east-0 eu-west-0", 1, "",
            id="the next region waits",
        ),
        (f"us-east-0 us-east-1 aged=10; eu-west-0 old; {ALL}", 1, "eu-west-0"),
        pytest.param(
            f"{EVERY}; {ALL}; set us-east unobserved", 1, "", id="its controller is slow",
        ),
        *(
            (f"{EVERY}; Training us-east-0 us-east-1; Lost eu-west-0", quorum, "eu-west-0")
            for quorum in (2, 3)  # idle ones go first
        ),
        pytest.param(
            f"us-east-0 old; us-east-1 old {LOOPS} exit=137; eu-west-0 old pending;"
            " syncer recovering", 3, "us-east-1 eu-west-0",
            id="those without a container go also when nothing is known of sessions",
        ),
        ("us-east-1 old runs exit=137; syncer recovering", 1, ""),
        pytest.param(f"us-east-0 aged=3600 {LOOPS}; {LATER}", 1, "", id="it does not work"),
        pytest.param(
            f"us-east-0 aged=3600 {LOOPS}; us-east-1 aged=3600; eu-west-0 old;"
            " Training us-east-1 eu-west-0", 1, "eu-west-0", id="or does, and one is in trouble",
        ),
        pytest.param(
            f"{EVERY}; Training us-east-0 eu-west-0; Stalled us-east-1", 1, "us-east-1",
            id="one that makes a pause goes first",
        ),
        *(
            pytest.param(
                f"us-east-0 old; us-east-1 aged=3600; eu-west-0 aged=3600; Training eu-west-0"
                f" us-east-1; {state} us-east-0:step_seconds=0", 1, "us-east-0",
                id=f"an edit is the fix of a first step that hangs, which is {state}",
            )
            for state in ("Training", "Stalled")
        ),
        ("us-east-0 aged=10; us-east-1 eu-west-0 old; Training eu-west-0; Stalled us-east-1",
         1, ""),
        pytest.param(f"us-east-0 aged=10 pending; {LATER}", 1, "", id="capacity is waited for"),
        *((f"us-east-0 aged=301 pending; {LATER}", quorum, "us-east-1") for quorum in (1, 2, 3)),
    ],
)  # fmt: skip
def test_an_edit_reaches_learners_at_a_pace(scene: str, quorum: int, restarted: str) -> None:
    assert names(decided(scene, f"spec.sync.quorum={quorum}").restart) == restarted


@pytest.mark.parametrize(("seconds", "restarted"), [(2.0, ""), (301.0, "us-east-1")])
def test_a_pod_that_has_just_been_deleted_is_on_trial(seconds: float, restarted: str) -> None:
    assert names(decided(LATER, deleted_seconds={DELETED: seconds}).restart) == restarted


@pytest.mark.parametrize(
    ("scene", "changes", "settings", "restarted"),
    [
        (f"us-east-0 us-east-1 old; {ALL}", ("spec.sync.quorum=1",), US_EAST, "us-east-0"),
        (  # where others are gone what is left counts
            "us-east-0 us-east-1 old; Training us-east-0 us-east-1",
            (THREE, "spec.sync.quorum=1"), US_EAST, "us-east-0",
        ),
        (f"eu-west-0 old; {ALL}", ("spec.sync.quorum=2",), EU_WEST, "eu-west-0"),
        ("eu-west-0 old; Training us-east-1 eu-west-0", ("spec.sync.quorum=2",), EU_WEST, ""),
        (  # none can be spared: each cluster takes one
            "eu-west-0 old; Training us-east-1 eu-west-0", ("spec.sync.quorum=3",), EU_WEST,
            "eu-west-0",
        ),
    ],
)  # fmt: skip
def test_a_cluster_takes_its_share_of_the_spare(
    scene: str, changes: tuple[str, ...], settings: Any, restarted: str
) -> None:
    assert names(decided(scene, *changes, settings=settings).restart) == restarted


HOSTS = "us-east-0/* us-east-1/* eu-west-0/* old"
OTHERS = "us-east-1/* eu-west-0/* old; Training us-east-1 eu-west-0"
FIRST, SECOND, THIRD = (f"{slot}-0 {slot}-1" for slot in ("us-east-0", "us-east-1", "eu-west-0"))
PAIRS = "us-east-1/* old; Training us-east-0 us-east-1"


@pytest.mark.parametrize(
    ("scene", "change", "restarted"),
    [
        (f"{HOSTS}; {ALL}", "spec.sync.quorum=2", FIRST),
        (f"{HOSTS}; {ALL}", "spec.sync.quorum=1", f"{FIRST} {SECOND}"),
        pytest.param(
            f"us-east-0/0 us-east-1/* eu-west-0/* old; us-east-0/1 aged=3600; {ALL}", "",
            "us-east-0-0 us-east-1-0 us-east-1-1", id="a lost host came back with the new template",
        ),
        pytest.param(f"us-east-0/* aged=10; {OTHERS}", "", "", id="until all hosts train"),
        (f"us-east-0/* aged=10; {OTHERS}; {ALL}", "", SECOND),
        (f"us-east-0/0 aged=10; {OTHERS}", "", ""),  # its other pod is being made
        (f"us-east-0/* aged=3600; {OTHERS}", "", ""),  # its template may be wrong
        (f"us-east-0/0 aged=3600; us-east-0/1 aged=3600 pending; {OTHERS}", "", SECOND),
        pytest.param(
            "us-east-0/* us-east-1/* eu-west-0/0 old; eu-west-0/1 old crashes exit=1;"
            " Training us-east-0 us-east-1; syncer recovering", "", THIRD, id="too few hosts run",
        ),
        ("us-east-0/* us-east-1/* eu-west-0/0 old; Training us-east-0 us-east-1;"
         " syncer recovering", "", "eu-west-0-0"),
        (f"{HOSTS}; Training us-east-0 us-east-1; Lost eu-west-0", "", THIRD),
        pytest.param(
            "us-east-0/0 old; us-east-0/1 old crashes exit=1; syncer recovering",
            "spec.learner.hostsMin=1", "", id="one host is enough",
        ),
        ("us-east-0/1 old; us-east-0/0 old crashes exit=1; syncer recovering",
         "spec.learner.hostsMin=1", "us-east-0-1 us-east-0-0"),
        pytest.param(
            f"us-east-0/0 us-east-1/0 old; us-east-0/1 us-east-1/1 old pending; {ALL}",
            "spec.sync.quorum=2", "us-east-0-0 us-east-0-1", id="it trains with fewer than asked",
        ),
        ("us-east-0/0 us-east-1/0 old; us-east-0/1 us-east-1/1 old pending; syncer serves", "",
         f"{FIRST} {SECOND}"),
        (f"us-east-0/* old; {PAIRS}", "", FIRST),
        (f"us-east-0/* old; {PAIRS}; set us-east-0 unobserved", "", SECOND),
        (f"us-east-0/0 old; us-east-0/1 @n2 old; {PAIRS}; n2 silent=30", "", SECOND),
        *(
            pytest.param(
                "us-east-0/0 old; us-east-0/1 @n2 old going; us-east-1/* old; Training us-east-1;"
                f" {state} us-east-0; n2 down for=900", "", "us-east-0-0", id="a host is given up",
            )
            for state in ("Lost", "Training")
        ),
        (f"us-east-0/0 @n1 old going; us-east-0/1 old; {PAIRS}; n1 down", "", SECOND),
        pytest.param(
            "us-east-0/0 @n1 old; us-east-0/1 @n2 old going; Lost us-east-0; n2 n3 n4 n5 down",
            "", "", id="not in a storm",
        ),
    ],
)  # fmt: skip
def test_all_hosts_of_a_learner_are_restarted_together(
    scene: str, change: str, restarted: str
) -> None:
    changes = ("spec.learner.hosts=2", *([change] if change else []))
    assert names(decided(scene, *changes).restart) == restarted


def held(*shards: tuple[str, bool], restorable: bool = True) -> set[str]:
    """Of shards with these templates, ready or not; all are to get "new"."""
    given = [
        ShardProcess(name=f"s{number}", serves=ready, changed=template == "old")
        for number, (template, ready) in enumerate(shards)
    ]
    return {*shards_to_hold(given, restorable=restorable)}


@pytest.mark.parametrize(
    ("shards", "restorable", "waits"),
    [
        ((("old", True), ("old", True)), True, {"s1"}),  # ready ones restart one at a time
        ((("new", True), ("old", True)), True, set()),
        ((("new", False), ("old", True)), True, {"s1"}),
        ((("old", False),), True, set()),  # one that is not ready gets its template at once
        ((("old", False), ("old", False)), True, set()),
        ((("old", True), ("old", False)), True, {"s0"}),
        ((("old", True), ("old", False)), False, {"s0"}),  # nothing could restore it
        ((("old", True),), False, {"s0"}),
        ((("new@12:00", True),), True, set()),  # the time of a restart is no part of a template
    ],
)
def test_shards_wait_for_each_other(
    shards: tuple[tuple[str, bool], ...], restorable: bool, waits: set[str]
) -> None:
    assert held(*shards, restorable=restorable) == waits


def test_a_pod_on_its_way_out_does_not_count_for_the_quorum() -> None:
    slots = [
        pb.SlotStatus(slot=f"us-east-{i}", uid=f"uid-us-east-{i}", state=pb.SLOT_TRAINING)
        for i in range(4)
    ]
    slots.append(pb.SlotStatus(slot="eu-west-0", uid="elsewhere", state=pb.SLOT_TRAINING))
    pods = [
        learner("us-east-0", "n"),
        learner("us-east-1", "n", terminating=True),
        learner("us-east-2", "n", uid="new"),
    ]  # and the pod of us-east-3 has just been deleted
    found = counted(slots, pods, lambda region: region == "us-east")
    assert found == {"us-east-0", "eu-west-0"}
    pair, busy = hosts("us-east-0", "n1", "n2"), reply(us_east_0="Training", us_east_1="Training")
    others = hosts("us-east-1", "n3", "n4", terminating=(False, True))
    assert counted(busy.slots, [*pair, *others], lambda _: True) == {"us-east-0"}
    assert not counted(busy.slots, [replace(pair[0], uid="new"), pair[1]], lambda _: True)
