"""The documents of the durable log."""

from atoll_syncer.model import log
from atoll_syncer.model.history import History


def test_an_entry_comes_back_from_its_document() -> None:
    entry = log.TermBegun(epoch=3, pod="uid", instance="uid-1")
    document = log.to_document(entry)
    assert document == {"kind": "TermBegun", "epoch": 3, "pod": "uid", "instance": "uid-1"}
    assert log.from_document(document) == entry


def test_a_field_that_a_newer_program_wrote_is_ignored() -> None:
    document = {"kind": "Begun", "shard": 1, "seq": 9, "later": True}
    assert log.from_document(document) == log.Begun(shard=1)


# ------------------------------------------------------------ the history


def merged(slot: str, incarnation: int, cursor: int) -> log.Merged:
    return log.Merged(slot=slot, incarnation=incarnation, base=0, capture=1, cursor=cursor)


def commit(
    fragment: int, number: int, *lineage: log.Merged, tick: int | None = None
) -> log.Committed:
    return log.Committed(
        slice=fragment,
        number=number,
        epoch=1,
        digest="d",
        object=f"{fragment}.{number}",
        base=number - 1,
        tick=number if tick is None else tick,
        due=number,
        reason="",
        last=False,
        recovered=bool(lineage),
        participants=(),
        lineage=lineage,
        tensors=({"name": "w"},) if lineage else (),
    )


def test_a_slots_cursor_is_the_largest_that_any_entry_names_not_the_newest_rule_28() -> None:
    entries = [commit(0, 1, merged("a-0", 2, 90)), commit(1, 1, merged("a-0", 2, 40))]
    history = History.of(entries)
    assert history.cursors == {"a-0": 90}
    assert [each.cursor for each in history.lineage(1)] == [90]


def test_the_incarnation_that_versions_name_is_the_highest_not_the_newest() -> None:
    entries = [commit(0, 1, merged("a-0", 5, 1)), commit(1, 1, merged("a-0", 3, 2))]
    assert History.of(entries).named == {"a-0": 5}


def test_a_version_taken_back_holds_its_own_lineage_and_nothing_of_another_value() -> None:
    """Rules 13 and 22: what the lost head held is not in the value that came back."""
    first = commit(0, 1, merged("a-0", 1, 1), merged("b-0", 1, 1))
    other = commit(1, 1, merged("b-0", 1, 1))
    history = History.of([first, other, commit(0, 2, merged("a-0", 1, 2))])
    assert [each.slot for each in history.lineage(0)] == ["a-0"]
    assert [each.slot for each in history.lineage(1)] == ["b-0"]


def test_the_tick_of_a_log_is_the_largest_of_any_entry_not_the_newest_rule_8() -> None:
    """A version that was taken back, or an end, may name an earlier tick than an entry before."""
    entries = [commit(0, 1, merged("a-0", 1, 1), tick=9), commit(1, 1, merged("a-0", 1, 1), tick=5)]
    assert History.of(entries).tick == 9
    assert History.of([*entries, log.Ended(tick=7)]).tick == 9
    assert History.of([*entries, log.Ended(tick=12)]).tick == 12
