"""Which sessions are dead, and which pods wait for the operator's word."""

import pytest

from atoll_operator.kube.observed.observation import with_hosts
from atoll_operator.kube.plan.situation import (
    idle,
    joined,
    judge,
    shard_addresses,
    to_name,
    to_retire,
)
from unit.kube.cluster_values import hosts, job, learner, reply, shard
from unit.kube.scenes import names, scene

HOSTS = "spec.learner.hosts=2"
POD = learner("us-east-0", "n1")
PAIR = hosts("us-east-0", "n1", "n2")
HEAD, FOLLOWER = PAIR
ONE, BOTH = "us-east-0", "us-east-0-0 us-east-0-1"


@pytest.mark.parametrize(
    ("text", "absent", "dead"),
    [
        ("us-east-0; Lost us-east-0", 0.0, ONE),
        ("us-east-0; Training us-east-0", 0.0, ""),
        # before the transport says so
        ("us-east-0; Stalled us-east-0:seconds_since_report=11", 0.0, ONE),
        ("us-east-0; Training us-east-0:uid=another", 0.0, ONE),
        ("us-east-0; syncer serves", 5.0, ""),  # a registrar that was restarted
        ("us-east-0; syncer serves", 12.0, ONE),
        ("us-east-0/*; Training us-east-0", 0.0, ""),
        ("us-east-0/*; Lost us-east-0", 0.0, BOTH),
        *(
            (f"us-east-0/*; {state} us-east-0", 0.0, "us-east-0-1")
            for state in ("Stalled", "Joining", "Recovering")
        ),
        ("us-east-0/*; syncer serves", 9.0, ""),
        ("us-east-0/*; syncer serves", 10.0, BOTH),
        # the session of another pod says nothing for the head alone
        ("us-east-0/*; Training us-east-0:uid=another", 0.0, "us-east-0-0"),
    ],
)
def test_a_session_is_dead_when_it_is_lost_silent_of_another_pod_or_unknown_for_a_while(
    text: str, absent: float, dead: str
) -> None:
    seen = scene(text, HOSTS)
    found = judge(seen.pods, seen.registrar, {"us-east-0": absent}, {}).dead
    assert names(pod for pod in seen.pods if pod.uid in found) == dead


def test_without_a_registrar_no_session_can_be_judged() -> None:
    judged = judge([POD], None, {}, {})
    assert not judged.dead
    assert judged.unseen == {POD.uid}


def test_a_learner_that_trains_with_fewer_hosts_says_nothing_of_the_others() -> None:
    trains = judge(PAIR, reply(us_east_0="Training"), {}, {}, needs_all=False)
    assert (trains.dead, trains.unseen) == (frozenset(), frozenset({FOLLOWER.uid}))
    lost = judge(PAIR, reply(us_east_0="Stalled"), {}, {}, needs_all=False)
    assert (lost.dead, lost.unseen) == (frozenset({FOLLOWER.uid}), frozenset())


def test_a_shard_is_dead_when_it_has_been_silent_for_a_while() -> None:
    assert judge([shard(0, "n")], None, {}, {0: 6.0}).dead
    assert not judge([shard(0, "n")], None, {}, {0: 2.0}).dead


@pytest.mark.parametrize(
    ("text", "absent", "named", "retired"),
    [
        ("us-east-0; Lost us-east-0", 0.0, [], [0]),
        ("us-east-0; Lost us-east-0:gen=1", 0.0, [("us-east-0", 1)], [None]),  # it is already
        ("us-east-0; Lost us-east-0:gen=3", 0.0, [("us-east-0", 3)], [None]),
        ("us-east-0; Lost us-east-0:gen=3,owner=uid-us-east-0", 0.0, [], [3]),
        ("us-east-0; Joining us-east-0", 0.0, [], [0]),  # a slot without a word needs none
        ("us-east-0; syncer serves", 3.0, [], [None]),
        ("us-east-0; syncer serves", 12.0, [("us-east-0", None)], [None]),  # it is asked about
        (  # no word is said for a host that is not the head's
            "us-east-0/*; Lost us-east-0:gen=3,owner=before", 0.0, [("us-east-0-0", 3)], [3, None],
        ),
        ("us-east-0/*; syncer serves", 60.0, [("us-east-0-0", None)], [None, None]),
    ],
)  # fmt: skip
def test_a_pod_newer_than_the_last_word_is_named_and_an_owner_is_retired_once(
    text: str,
    absent: float,
    named: list[tuple[str, int | None]],
    retired: list[int | None],
) -> None:
    seen = scene(text, HOSTS)
    found = to_name(seen.pods, seen.registrar, {"us-east-0": absent})
    assert [(names([pod]), word) for pod, word in found] == named
    assert [to_retire(pod, seen.registrar) for pod in seen.pods] == retired


def test_a_host_has_a_session_when_its_head_has_one() -> None:
    assert joined(reply(us_east_0="Stalled"), PAIR) == frozenset({HEAD.uid, FOLLOWER.uid})
    assert joined(reply(us_east_0="Lost"), PAIR) == frozenset()
    assert joined(reply(us_east_1="Training"), PAIR) == frozenset({"uid-us-east-1"})
    assert with_hosts(frozenset({FOLLOWER.uid}), PAIR) == {FOLLOWER.uid}


def test_shards_are_reached_at_their_newest_pods_or_at_the_endpoints_of_another_cluster() -> None:
    two = job("spec.export={url: 'file:///x'}")
    pods = [
        shard(0, "n", address="old", terminating=True, uid="a"),
        shard(0, "m", address="new", uid="b"),
        shard(1, "n"),
    ]
    assert shard_addresses(two, pods, lambda _: True) == {0: "new:7700", 1: ""}
    assert shard_addresses(two, pods[:1], lambda _: True)[0] == "old:7700"
    for phase in ("Failed", "Succeeded"):  # evicted, or ended with its node
        dead = shard(0, "m", address="dead", phase=phase)
        assert shard_addresses(two, [*pods, dead], lambda _: True)[0] == "new:7700"
        assert shard_addresses(two, [dead], lambda _: True)[0] == ""
    six = shard(0, "m", address="fd00::5")
    assert shard_addresses(two, [six], lambda _: True)[0] == "[fd00::5]:7700"
    far = job("spec.syncer.endpoints=['a:1', 'b:2']")
    assert shard_addresses(far, [], lambda _: False) == {0: "a:1", 1: "b:2"}


@pytest.mark.parametrize(
    ("text", "absent", "idles"),
    [
        *((f"us-east-0; {state} us-east-0", 0.0, True) for state in ("Joining", "Lost", "Left")),
        *(
            (f"{pods}; {state} us-east-0", 0.0, False)
            for pods in ("us-east-0", "us-east-0/*", "us-east-0/1; us-east-0/0")
            for state in ("Training", "Stalled")
        ),
        ("us-east-0/1; Training us-east-0", 0.0, True),  # the pod of its head is gone
        ("us-east-0/*; Lost us-east-0", 0.0, True),
        ("us-east-0; Training us-east-0:uid=another", 0.0, True),
        *((f"{pods}; syncer serves", 9.0, False) for pods in ("us-east-0", "us-east-0/*")),
        *((f"{pods}; syncer serves", 10.0, True) for pods in ("us-east-0", "us-east-0/*")),
        ("us-east-0; Joining us-east-0; syncer recovering", 0.0, False),  # it may need its state
    ],
)
def test_a_slot_is_idle_when_it_is_known_not_to_train(
    text: str, absent: float, idles: bool
) -> None:
    seen = scene(text, HOSTS)
    assert bool(idle(seen.pods, seen.replies, {"us-east-0": absent})) == idles
    assert not idle(seen.pods, [*seen.replies, None], {"us-east-0": absent})
