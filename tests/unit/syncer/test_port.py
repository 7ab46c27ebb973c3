"""What a session of several lanes is sent: one composition of a version, a part on each lane."""

from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.frames import Buffer
from atoll_syncer.port import SessionPort, Spans


def version(number: int, fragment: int = 3) -> pb.Publish:
    return pb.Publish(version=pb.SliceVersion(slice=fragment, version=pb.Version(number=number)))


@dataclass
class Sent:
    """A port, what its lanes took, and how often a version was composed."""

    port: SessionPort
    composed: int = 0
    numbers: dict[int, list[int]] = field(default_factory=dict)  # by lane

    def take(self, lane: int, publish: pb.Publish) -> pb.Transfer:
        """The lane is free, and this is the newest version."""

        def compose() -> tuple[pb.Transfer, Buffer, Spans]:
            self.composed += 1
            return pb.Transfer(publish=publish), b"", ((),) * len(self.port.lanes)

        assert self.port.take(lane) == publish.version.slice
        sending = self.port.sending(lane, publish, compose)
        self.numbers.setdefault(lane, []).append(sending.number)
        return sending.head

    @property
    def waiting(self) -> list[list[int]]:
        return [[*lane.lacking] for lane in self.port.lanes]


def test_all_lanes_send_parts_of_one_composition_rule_34() -> None:
    one = Sent(SessionPort(lanes=3))
    one.port.publish(3)
    assert one.waiting == [[3], [3], [3]]
    for lane in (2, 0, 1):
        one.take(lane, version(5))
    assert one.composed == 1
    assert one.numbers == {2: [1], 0: [1], 1: [1]}
    assert one.port.sendings == {}  # its bytes are not kept
    assert one.waiting == [[], [], []]


def test_a_lane_that_asks_anew_before_all_have_sent_makes_all_send_anew_rule_34() -> None:
    one = Sent(SessionPort(lanes=2))
    one.port.publish(3)
    one.take(0, version(5))
    one.port.publish(3)  # a newer version, or the same once more
    one.take(0, version(5))
    assert one.waiting == [[], [3]]
    one.take(1, version(5))
    assert one.numbers == {0: [1, 2], 1: [2]}
    assert one.port.sendings == {}


def test_a_version_that_a_slow_lane_has_not_sent_is_left_out_for_a_newer_one_rule_24() -> None:
    one = Sent(SessionPort(lanes=2))
    one.port.publish(3)
    one.take(0, version(5))
    one.take(1, version(6))  # nobody has asked lane 0 for it yet
    assert one.waiting == [[3], []]
    assert one.take(0, version(6)).publish.version.version.number == 6
    assert one.numbers == {0: [1, 2], 1: [2]}


def test_the_numbers_of_a_lane_grow_in_whatever_order_it_has_its_slices_rule_33() -> None:
    one = Sent(SessionPort(lanes=2))
    one.port.publish(4)
    one.take(0, version(5, 4))
    one.port.publish(3)
    one.port.publish(4)  # lane 1 has slice 4 before slice 3 in its mailbox, lane 0 behind it
    assert one.waiting == [[3, 4], [4, 3]]
    one.take(0, version(5, 3))
    one.take(0, version(6, 4))
    one.take(1, version(5, 3))
    one.take(1, version(6, 4))
    assert one.numbers == {0: [1, 2, 3], 1: [2, 3]}
    assert one.waiting == [[], []]


def test_a_lane_that_comes_back_to_an_older_transfer_has_it_sent_anew_rule_33() -> None:
    one = Sent(SessionPort(lanes=2))
    one.port.publish(3)
    one.take(0, version(5))
    assert one.port.take(1) == 3  # the rules had nothing of it to send then
    one.port.publish(4)
    one.take(1, version(5, 4))
    one.port.publish(3)
    one.take(1, version(5))
    assert one.numbers == {0: [1], 1: [2, 3]}
    assert one.waiting == [[4, 3], []]


def test_numbers_of_transfers_are_those_of_the_session() -> None:
    one = Sent(SessionPort(lanes=1))
    for fragment in (1, 2):
        one.port.publish(fragment)
        one.take(0, version(1, fragment))
    assert one.port.next_number() == 3
    assert one.numbers == {0: [1, 2]}


def test_a_companion_goes_over_the_first_lane_alone() -> None:
    port = SessionPort(lanes=2)
    port.publish_companion(("a", "b"), changed=False)
    assert [lane.ready.is_set() for lane in port.lanes] == [True, False]
    assert [part.part for _, part in port.parts] == [0, 1]


def test_a_welcome_says_how_many_lanes_the_session_has_rule_34() -> None:
    port = SessionPort("secret", lanes=3)
    port.send(pb.ToLearner(welcome=pb.Welcome(session=7)))
    assert port.control[0].welcome.lanes == 3
    assert port.closed_lanes == [0, 1, 2]
