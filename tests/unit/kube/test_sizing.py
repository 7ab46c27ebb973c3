"""A link or an overlap that will not hold by the manifest's own numbers is named in Accepted."""

from typing import Any

from unit.kube.world import World

SIZING = ("sizing", {"parameters": 10**9, "stepMilliseconds": 1000})


def regions(megabits: int) -> tuple[str, Any]:
    link = {"megabitsPerSecond": megabits, "roundTripMilliseconds": 90}
    return "regions", [{"name": "us-east", "learners": 2}, {"name": "eu-west", "link": link}]


def test_accepted_warns_of_a_link_that_will_not_hold_and_the_job_starts() -> None:
    found = World(SIZING, regions(500))
    found.runs()
    accepted = found.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
    assert "eu-west: 200% of its link on average" in accepted["message"]
    assert found.live("StatefulSet", "tiny-us-east")


def test_an_edit_of_the_numbers_changes_the_message_and_restarts_nobody() -> None:
    found = World(SIZING, regions(500))
    found.runs()
    before = found.live("StatefulSet", "tiny-eu-west")["spec"]
    found.edit(sizing={"parameters": 10**7, "stepMilliseconds": 1000})
    found.runs()
    assert found.said("Accepted")["message"] == ""
    assert found.live("StatefulSet", "tiny-eu-west")["spec"] == before


def test_nothing_is_said_without_the_numbers() -> None:
    found = World(regions(1))
    found.runs()
    assert found.said("Accepted")["message"] == ""
