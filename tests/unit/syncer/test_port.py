"""What a session of several lanes is sent: one composition of a version, a part on each lane."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.duties.port import SessionPort, Spans


def version(fragment: int, number: int) -> pb.Publish:
    return pb.Publish(version=pb.SliceVersion(slice=fragment, version=pb.Version(number=number)))


def played(lanes: int, words: str) -> tuple[SessionPort, dict[int, list[int]], int]:
    """A port, the numbers of what its lanes sent, and how often a version was composed.

    `+3`: slice 3 is published. `0:3.5`: lane 0 is free, takes slice 3, and version 5 is the newest.
    `1:3`: lane 1 takes slice 3, of which the rules have nothing to send then.
    """
    port, numbers, composed = SessionPort(lanes=lanes), dict[int, list[int]](), 0
    for word in words.split():
        if word.startswith("+"):
            port.publish(int(word))
            continue
        lane, _, name = word.partition(":")
        fragment, _, number = name.partition(".")
        assert port.take(int(lane)) == int(fragment)
        if not number:
            continue
        publish = version(int(fragment), int(number))

        def compose(publish: pb.Publish = publish) -> tuple[pb.Transfer, Buffer, Spans]:
            nonlocal composed
            composed += 1
            return pb.Transfer(publish=publish), b"", ((),) * lanes

        sending = port.sending(int(lane), publish, compose)
        assert sending.head.publish == publish
        numbers.setdefault(int(lane), []).append(sending.number)
    return port, numbers, composed


@pytest.mark.parametrize(
    ("lanes", "words", "numbers", "composed", "waiting"),
    [
        # all lanes send parts of one composition (rule 34)
        (3, "+3", {}, 0, [[3], [3], [3]]),
        (3, "+3 2:3.5 0:3.5 1:3.5", {2: [1], 0: [1], 1: [1]}, 1, [[], [], []]),
        # one that asks anew, for a newer version or the same, makes all send anew (rule 34)
        (2, "+3 0:3.5 +3 0:3.5", {0: [1, 2]}, 2, [[], [3]]),
        (2, "+3 0:3.5 +3 0:3.5 1:3.5", {0: [1, 2], 1: [2]}, 2, [[], []]),
        # a version that a slow lane has not sent is left out for a newer one (rule 24)
        (2, "+3 0:3.5 1:3.6", {0: [1], 1: [2]}, 2, [[3], []]),
        (2, "+3 0:3.5 1:3.6 0:3.6", {0: [1, 2], 1: [2]}, 2, [[], []]),
        # the numbers of a lane grow in whatever order it has its slices (rule 33)
        (2, "+4 0:4.5 +3 +4", {0: [1]}, 1, [[3, 4], [4, 3]]),
        (2, "+4 0:4.5 +3 +4 0:3.5 0:4.6 1:3.5 1:4.6", {0: [1, 2, 3], 1: [2, 3]}, 3, [[], []]),
        # a lane that comes back to an older transfer has it sent anew (rule 33)
        (2, "+3 0:3.5 1:3 +4 1:4.5 +3 1:3.5", {0: [1], 1: [2, 3]}, 3, [[4, 3], []]),
        (1, "+1 0:1.1 +2 0:2.1", {0: [1, 2]}, 2, [[]]),
    ],
)
def test_each_lane_sends_its_part_of_the_newest_version_in_growing_numbers(
    lanes: int,
    words: str,
    numbers: dict[int, list[int]],
    composed: int,
    waiting: list[list[int]],
) -> None:
    port, sent, compositions = played(lanes, words)
    assert (sent, compositions) == (numbers, composed)
    assert [[*lane.lacking] for lane in port.lanes] == waiting
    assert bool(port.sendings) == (numbers != {} and waiting != [[]] * lanes)  # bytes are not kept
    assert port.next_number() == max(map(max, numbers.values()), default=0) + 1


def test_a_welcome_says_how_many_lanes_a_session_has() -> None:
    port = SessionPort("secret", lanes=3)
    port.send(pb.ToLearner(welcome=pb.Welcome(session=7)))
    assert (port.control[0].welcome.lanes, port.control[0].welcome.secret) == (3, "secret")
    assert port.closed_lanes == [0, 1, 2]
