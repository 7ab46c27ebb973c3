"""The documents of the durable log: logs that older programs wrote stay readable."""

from atoll_syncer.model import log


def test_the_kinds_in_the_files_of_a_log_never_change() -> None:
    assert sorted(log.KINDS) == [
        "Begun",
        "Closed",
        "Committed",
        "Ended",
        "Owned",
        "Reign",
        "RunStarted",
        "Seeded",
        "ShardFinal",
        "Taken",
    ]


def test_the_record_of_a_term_has_the_fields_that_it_always_had() -> None:
    document = {"kind": "Reign", "epoch": 3, "pod": "uid", "instance": "uid-1"}
    entry = log.from_document(document)
    assert entry == log.TermBegun(epoch=3, pod="uid", instance="uid-1")
    assert log.to_document(entry) == document


def test_a_field_that_a_newer_program_wrote_is_ignored() -> None:
    document = {"kind": "Begun", "shard": 1, "seq": 9, "later": True}
    assert log.from_document(document) == log.Begun(shard=1)
