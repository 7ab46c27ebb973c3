"""States of shards and slots: the texts that status files, metrics and tapes have always had."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.states import SHARD_TEXTS, SLOT_TEXTS, UNKNOWN, shard_text, slot_text


def test_the_texts_of_shards_are_those_that_people_know() -> None:
    words = ["Starting", "Seeding", "Recovering", "Serving", "Final", "Complete", "Failed"]
    assert list(SHARD_TEXTS.values()) == words


def test_the_texts_of_slots_are_those_that_people_know() -> None:
    words = ["Joining", "Recovering", "Training", "Stalled", "Lost", "Left"]
    assert list(SLOT_TEXTS.values()) == words


def test_a_state_has_one_text() -> None:
    assert shard_text(pb.SHARD_SERVING) == "Serving"
    assert slot_text(pb.SLOT_LOST) == "Lost"


def test_an_absent_state_and_one_of_a_newer_version_are_unknown() -> None:
    assert shard_text(pb.StatusReply().state) == slot_text(pb.SlotStatus().state) == UNKNOWN
    assert shard_text(99) == slot_text(99) == UNKNOWN
