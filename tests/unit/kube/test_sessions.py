"""Which sessions are dead, and which pods wait for the operator's word."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.plan.sessions import idle, judge, shard_addresses, to_name, to_retire
from unit.kube.cluster_values import job, learner, reply, shard

POD = learner("us-east-0", "n1")


def dead(registrar: pb.StatusReply | None, absent: float = 0.0) -> bool:
    return POD.uid in judge([POD], registrar, {POD.slot: absent}, {}).dead


def test_a_lost_slot_is_dead_and_a_training_one_is_not() -> None:
    assert dead(reply(us_east_0="Lost"))
    assert not dead(reply(us_east_0="Training"))


def test_a_session_that_has_stopped_reporting_is_dead_before_the_transport_says_so() -> None:
    registrar = reply(us_east_0="Stalled")
    registrar.slots[0].seconds_since_report = 11.0
    assert dead(registrar)


def test_a_session_of_another_pod_says_nothing_for_this_one() -> None:
    registrar = reply(us_east_0="Training")
    registrar.slots[0].uid = "another"
    assert dead(registrar)


def test_a_slot_unknown_to_a_restarted_registrar_is_dead_only_after_a_while() -> None:
    assert not dead(reply(), absent=5)
    assert dead(reply(), absent=12)


def test_without_a_registrar_no_session_can_be_judged() -> None:
    judged = judge([POD], None, {}, {})
    assert not judged.dead
    assert judged.unseen == {POD.uid}


def test_a_shard_is_dead_when_it_has_been_silent_for_a_while() -> None:
    assert judge([shard(0, "n")], None, {}, {0: 6.0}).dead
    assert not judge([shard(0, "n")], None, {}, {0: 2.0}).dead


def test_an_owner_is_retired_once() -> None:
    registrar = reply(us_east_0="Lost")
    assert to_retire(POD, registrar) == 0
    registrar.slots[0].owner_word = 1
    assert to_retire(POD, registrar) is None


def test_a_pod_newer_than_the_last_word_is_named() -> None:
    registrar = reply(us_east_0="Lost")
    registrar.slots[0].owner_word = 3
    assert to_name([POD], registrar, {}) == [(POD, 3)]
    registrar.slots[0].owner_uid = POD.uid
    assert to_name([POD], registrar, {}) == []


def test_a_slot_without_a_word_needs_none() -> None:
    assert to_name([POD], reply(us_east_0="Joining"), {}) == []


def test_a_slot_that_a_restarted_registrar_does_not_show_is_asked_about() -> None:
    assert to_name([POD], reply(), {POD.slot: 3.0}) == []
    assert to_name([POD], reply(), {POD.slot: 12.0}) == [(POD, None)]


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


def idles(registrar: pb.StatusReply, absent: float = 0.0) -> bool:
    return bool(idle([POD], [registrar], {POD.slot: absent}))


def test_a_slot_is_idle_when_it_is_known_not_to_train() -> None:
    for state, known in {
        "Joining": True, "Lost": True, "Left": True, "Training": False, "Stalled": False,
    }.items():  # fmt: skip
        assert idles(reply(us_east_0=state)) is known
    other = reply(us_east_0="Training")
    other.slots[0].uid = "another"
    assert idles(other)
    assert not idles(reply(), absent=9.0)
    assert idles(reply(), absent=10.0)


def test_no_slot_is_idle_while_a_shard_may_wait_for_its_state() -> None:
    recovering = reply(us_east_0="Joining")
    recovering.state = pb.SHARD_RECOVERING
    assert not idles(recovering)
    assert not idle([POD], [reply(us_east_0="Joining"), None], {})
