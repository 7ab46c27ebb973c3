"""What is seen of the machines of `atoll serve`: bytes over all starts, rates and rows."""

import json
from pathlib import Path
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.local_status import (
    MACHINES_FILE,
    Ends,
    MachinesFile,
    MachineTraffic,
    Moved,
    ShownMachine,
    moved_by_machines,
    read_machines,
    to_json,
)
from atoll_operator.local.show.live import Answer, json_line, machine_rows, of_slots, picture, table
from unit.local.test_local_status import reply, snapshot

HOUSE = Ends("eu", "house")
ROW = ShownMachine(
    name="house",
    region="eu",
    slots=("eu-0",),
    address="10.0.0.2",
    up_bytes=3_000_000_000,
    down_bytes=1_000_000_000,
    up_rate=2_500_000.0,
    down_rate=0.0,
)
GONE = ShownMachine(name="old", region="eu", revoked=True, up_bytes=500)


def answer(instance: str, up: int, down: int) -> pb.StatusReply:
    of_house = pb.LinkBytes(region="eu", machine="house", received=up, sent=down)
    at_home = pb.LinkBytes(region="us", received=99, sent=99)
    return pb.StatusReply(instance=instance, links=[of_house, at_home])


def test_bytes_count_over_all_processes_of_the_shards() -> None:
    traffic = MachineTraffic({HOUSE: Moved(100, 200)})
    assert traffic.rates(HOUSE) is None
    traffic.see(0.0, [answer("one", 5, 7), answer("two", 1, 1)])
    traffic.see(1.0, [None, answer("two", 3, 1)])
    assert traffic.total == {HOUSE: Moved(108, 208)}
    traffic.see(2.0, [answer("one again", 10, 0), answer("two", 3, 1)])
    assert traffic.total == {HOUSE: Moved(118, 208)}


def test_a_rate_is_of_the_last_ten_seconds() -> None:
    traffic = MachineTraffic()
    for second in range(31):
        traffic.see(float(second), [answer("one", min(second, 25) * 1000, 0)])
    up, down = traffic.rates(HOUSE) or (0.0, 1.0)
    assert (up, down) == pytest.approx((8 * 5000 / 10, 0.0))
    assert traffic.rates(Ends("eu", "none")) == (0.0, 0.0)


def test_tapes_tell_what_ended_processes_have_moved() -> None:
    def line(up: int, down: int, **machines: tuple[int, int]) -> dict[str, Any]:
        return {"bytes_up": up, "bytes_down": down, "machines": {"eu": machines}}

    first = [{"bytes_up": 0, "bytes_down": 0}, line(5, 5, house=(5, 5)), line(9, 8, house=(7, 8))]
    again = [{"bytes_up": 0, "bytes_down": 0}, line(4, 0, house=(1, 0), other=(3, 0))]
    found = moved_by_machines([[*first, *again], [line(1, 1, house=(1, 1))]])
    assert found == {HOUSE: Moved(9, 9), Ends("eu", "other"): Moved(3, 0)}


def test_a_row_says_where_a_machine_is_and_what_goes_to_and_fro() -> None:
    head, row, gone, everything = machine_rows([ROW, GONE])
    assert head == ["MACHINE", "REGION", "ADDRESS", "UP NOW", "DOWN NOW", "UP", "DOWN"]
    assert row == ["house", "eu", "10.0.0.2", "2.50 Mbit/s", "0.00 Mbit/s", "3.0 GB", "1.0 GB"]
    assert gone == ["old", "eu", "revoked", "-", "-", "500 bytes", "0 bytes"]
    assert everything[:2] == ["all", "-"]
    assert everything[-2:] == ["3.0 GB", "1.0 GB"]
    assert len(machine_rows([ROW])) == 2
    assert of_slots([ROW, GONE]) == {"eu-0": "house"}


def test_the_tables_show_machines_and_who_trains_where() -> None:
    found = pb.StatusReply(slots=[pb.SlotStatus(slot="eu-0"), pb.SlotStatus(slot="us-0")])
    lines = table([Answer(found)], {}, machines=[ROW]).splitlines()
    assert lines[0].endswith("MACHINE")
    assert lines[1].endswith(" house")
    assert lines[2].endswith(" -")
    assert [each for each in lines if each.startswith("house  ")]
    assert "MACHINE" not in table([Answer(found)], {})
    seen = snapshot([reply(), reply()], machines=[ROW])
    assert json.loads(json_line(seen))["machines"][0]["address"] == "10.0.0.2"
    assert "machines" not in json.loads(json_line(snapshot([reply(), reply()])))
    assert "10.0.0.2" in str(picture(seen).renderables[-1])  # type: ignore[union-attr]


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_machines(tmp_path) is None
    had = MachinesFile(machines=(ROW, GONE))
    (tmp_path / MACHINES_FILE).write_text(to_json(had))
    assert read_machines(tmp_path) == had
    (tmp_path / MACHINES_FILE).write_text("{")
    assert read_machines(tmp_path) is None
