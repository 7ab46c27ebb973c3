"""What followed each fault, from lines as shards and learners write them."""

from typing import Any

from atoll_operator.local.chaos.effects import sums, with_effects

START = 1000.0  # Unix seconds


def fault(word: str, target: Any, began: float, ended: float | None = None) -> dict[str, Any]:
    ended = began if ended is None else ended
    line = {"fault": word, "target": target, "planned": began, "seconds": ended - began}
    return line | {"began": START + began, "ended": START + ended, "time": START + ended}


def commit(at: float, shard: int, *parts: tuple[str, int], **more: Any) -> dict[str, Any]:
    line = {"event": "commit", "run": "r", "time": START + at, "shard": shard, "slice": 0}
    some = [
        {"slot": slot, "incarnation": number, "tokens": 10, "base": 0} for slot, number in parts
    ]
    return line | {"participants": some} | more


def step(
    at: float, slot: str, incarnation: int, late: int = 0, *, tokens: int = 10, adopts: bool = False
) -> dict[str, Any]:
    line = {"slot": slot, "incarnation": incarnation, "time": START + at, "tokens": tokens}
    settled = {"shard": 0, "slice": 0, "version": 1, "merged": 0, "overlap": 0, "late": late}
    return line | {"adopted": [settled] if late or adopts else []}


def back(line: dict[str, Any], *tape: dict[str, Any]) -> Any:
    (found,) = with_effects([line], [], tape)
    return found["back_seconds"]


def test_a_shard_is_back_with_its_next_commit_that_is_not_taken_back() -> None:
    both = ("a-0", 1), ("b-0", 1)
    tape = [commit(9.0, 1, *both), commit(11.0, 0, *both), commit(12.0, 1, recovered=True)]
    assert back(fault("kill", "shard-1", 10.0), *tape) is None
    assert back(fault("kill", "shard-1", 10.0), *tape, commit(13.0, 1, *both)) == 3.0
    assert back(fault("fillDisk", "shard-0", 8.0, 10.5), *tape) == 0.5
    assert back(fault("kill", "shard-1-b", 8.0), *tape, commit(13.0, 1, *both)) == 1.0  # the shard


def test_a_learner_is_back_when_it_is_merged_and_after_a_kill_as_a_new_incarnation() -> None:
    tape = [
        commit(9.0, 0, ("a-0", 1), ("b-0", 1)),
        commit(11.0, 0, ("a-0", 1)),  # its last offer was there already
        commit(12.0, 0, ("b-0", 2)),
        commit(14.0, 0, ("a-0", 2)),
    ]
    assert back(fault("kill", "a-0", 10.0), *tape) == 4.0
    assert back(fault("pause", "a-0", 8.0, 10.0), *tape) == 1.0
    assert back(fault("pause", "a-0", 8.0, 15.0), *tape) is None


def test_a_link_is_back_when_its_shard_merges_its_learner() -> None:
    tape = [
        commit(11.0, 0, ("a-0", 1)),
        commit(12.0, 1, ("b-0", 1)),
        commit(13.0, 1, ("a-0", 1), ("b-0", 1)),
    ]
    assert back(fault("cut", ["a-0", "shard-1"], 8.0, 10.0), *tape) == 3.0


def test_the_others_largest_gap_is_that_before_and_that_in_which_the_fault_was() -> None:
    times = [1.0, 2.0, 5.0, 6.0, 10.0, 10.5, 30.0]
    others = [commit(at, 0, ("a-0", 1)) for at in times]
    own = [commit(at, 1, ("a-0", 1)) for at in (1.0, 11.0)]
    (found,) = with_effects([fault("kill", "shard-1", 7.0)], [], others + own)
    assert (found["gap_seconds_before"], found["gap_seconds_after"]) == (3.0, 19.5)
    assert found["run"] == "r"
    by_name = [fault("kill", "a-0", 7.0), fault("kill", "b-0", 7.0)]
    of_a, of_b = with_effects(by_name, [], others)
    assert of_a["gap_seconds_after"] is None  # nobody else was merged
    assert of_b["gap_seconds_after"] == 4.0


def test_late_and_lost_tokens_count_for_one_fault() -> None:
    lines = [
        *(step(1.0, "a-0", 1, adopts=True), step(8.0, "a-0", 1), step(20.0, "a-0", 2, late=4)),
        {"slot": "a-0", "incarnation": 2, "time": START + 30.0, "event": "end"},
        *(step(1.0, "b-0", 1, late=9), step(11.5, "b-0", 1, late=2), step(40.0, "b-0", 1, late=9)),
        {"slot": "b-0", "incarnation": 1, "time": START + 41.0, "event": "end"},
        *(step(1.0, "c-0", 1, late=1), step(9.5, "c-0", 1, tokens=0)),  # dies of something else
    ]
    tape = [commit(0.5, 0, ("a-0", 1)), commit(21.0, 0, ("a-0", 2)), commit(12.0, 1, ("b-0", 1))]
    faults = [
        fault("kill", "shard-1", 11.0),
        fault("slowCpu", "a-0", 5.0, 15.0),
        fault("kill", "a-0", 9.0),
        fault("pause", "b-0", 50.0, 60.0),
    ]
    found = with_effects(faults, lines, tape)
    assert [each["began"] - START for each in found] == [5.0, 9.0, 11.0, 50.0]
    assert [each["tokens_late"] for each in found] == [0, 4, 2, 0]
    assert [each["tokens_lost"] for each in found] == [0, 10, 0, 0]
    assert sums(found) == {
        "faults": 4,
        "not_made": 0,
        "not_back": 1,
        "back_seconds": 6.0 + 12.0 + 1.0,
        "back_seconds_max": 12.0,
        "gap_seconds_before": 20.5,
        "gap_seconds_after": 20.5,
        "tokens_late": 6,
        "tokens_lost": 10,
    }


def test_a_fault_of_a_run_without_commits_has_no_effect() -> None:
    line = fault("kill", "a-0", 1.0) | {"not_made": "it did not run"}
    (found,) = with_effects([line], [], [])
    assert found["not_made"] == "it did not run"
    assert (found["back_seconds"], found["gap_seconds_after"]) == (None, None)
    assert sums([found])["not_made"] == 1
