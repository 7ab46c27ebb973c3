"""What a server sees of its machines and tells them, and what they say when it is silent."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator import cli
from atoll_operator.cli.tokens import revoked
from atoll_operator.local import atoll_run
from atoll_operator.local.progress import local_status
from atoll_operator.local.progress.machines import ShownMachine, read_machines
from atoll_operator.local.progress.poller import Poller
from atoll_operator.local.supervision.ports import free_ports
from atoll_operator.machines.joined.entering import enter
from atoll_operator.machines.joined.watching import Watcher
from atoll_operator.machines.server.folder import ANCHOR_FILE, anchor_in
from atoll_operator.machines.server.job_certificates import AUTHORITY_FILE
from atoll_operator.machines.server.serving import serving_in
from atoll_operator.sizing.prices import Prices
from atoll_protos.errors import AwayError, SpecError
from unit.local.test_local_status import NOW, job
from unit.machines.served import JOB, Served


def test_the_server_shows_where_its_machines_are_and_how_far(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher = Watcher(folder, machine, served.said.append)
    begun = time.time()

    def seen() -> ShownMachine:
        status = local_status.status(job(), [None, None], NOW)
        found = Poller(job(), ("127.0.0.1:1",)).resting(status, 1.0)
        served.server.shown_at = -10.0
        served.server.tell(found, final=False, complete=False)
        (one,) = served.server.machines()
        return one

    watcher.look()
    watcher.trips.extend((0.5, 0.25, 0.75, 0.25, 0.5))  # of which the least is told
    assert len(watcher.trips) == 5
    watcher.look()
    one = seen()
    assert (one.name, one.region, one.slots) == ("house", "us", ("us-0",))
    assert (one.address, one.round_trip_seconds) == ("127.0.0.1", 0.25)
    assert one.heard_at >= begun
    assert 0.0 < watcher.trips[-1] < 60.0
    kept = read_machines(served.out)
    assert kept is not None
    assert (kept.home, kept.machines) == ("us", (one,))
    Watcher(folder, machine, served.said.append).look()  # started again, it knows none yet
    assert seen().round_trip_seconds == 0.25
    revoked(served.out, "house")
    with pytest.raises(ValueError, match="not enough values"):
        seen()  # it has moved nothing, so nothing of it stays


def test_a_machine_asks_again_and_again_over_one_connection(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    dialled, dial = list[str](), grpc.secure_channel

    def noted(place: str, *more: Any, **options: Any) -> grpc.Channel:
        dialled.append(place)
        return dial(place, *more, **options)

    monkeypatch.setattr(grpc, "secure_channel", noted)
    watcher = Watcher(folder, machine, served.said.append)
    for _ in range(3):
        watcher.look()
    assert dialled == [machine.server]


def test_a_shard_that_has_not_answered_may_still_have_learners_of_other_machines(
    served: Served,
) -> None:
    def leaving(*replies: pb.StatusReply | None) -> bool:
        return served.server.leaving(SimpleNamespace(replies=replies))  # type: ignore[arg-type]

    there = pb.StatusReply(slots=[pb.SlotStatus(slot="us-0", state=pb.SLOT_TRAINING)])
    left = pb.StatusReply(slots=[pb.SlotStatus(slot="us-0", state=pb.SLOT_LEFT)])
    own = pb.StatusReply(slots=[pb.SlotStatus(slot="here-0", state=pb.SLOT_TRAINING)])
    assert leaving(left, there)
    assert leaving(left, None)
    assert not leaving(left, own)


def test_a_damaged_authority_is_named_with_its_file(served: Served) -> None:
    path = served.out / "machines" / AUTHORITY_FILE
    had = path.read_text()
    for text in ("", "{", json.dumps({**json.loads(had), "tls.key": "x"})):
        path.write_text(text)
        with pytest.raises(SpecError, match=f"delete {path}: a new authority is made"):
            served.server.certificates.keep(time.time())
    path.unlink()
    served.server.certificates.keep(time.time())
    assert path.read_text() != had


def test_a_damaged_certificate_of_the_join_port_is_named_with_its_file(served: Served) -> None:
    folder = served.out / "machines"
    path, had = folder / ANCHOR_FILE, anchor_in(folder, time.time())
    for text in ("", "{", "{}", json.dumps({"certificate": "x", "key": "y"})):
        path.write_text(text)
        with pytest.raises(SpecError, match=f"{path}: is damaged; put a copy of it back"):
            anchor_in(folder, time.time())
    path.unlink()
    assert anchor_in(folder, time.time()) != had


def test_a_silent_server_is_spoken_of_ever_more_rarely(served: Served, tmp_path: Path) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    said = list[str]()
    watcher = Watcher(folder, machine, said.append)
    away = AwayError("h:7700", "is away", "wait")
    for minute in range(9):
        watcher._fails(away, 60.0 * minute)
        watcher._fails(OSError("full"), 60.0 * minute + 1.0)
    assert len(said) == 5, said
    assert said[0] == "h:7700 is away; learners train on, and it is asked again and again"
    assert [each.split("has not answered for ")[1].split(";")[0] for each in said[1:]] == [
        *("60 s", "2 min", "4 min", "8 min"),
    ]
    assert "if the job is complete, end this" in said[-1]
    watcher.look()
    assert said[-1] == f"{machine.server} answers again"


def test_a_machine_that_was_off_hears_of_the_end_from_the_next_server(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    enter(replace(served.options(tmp_path / "b", served.token()), name="shed"))
    watcher = Watcher(folder, machine, served.said.append)
    served.server.now.machines.clear()  # both are off
    served.server.now.tell(pb.JOB_COMPLETE, 60)
    served.server._tell_the_end()
    assert served.said[-1] == (
        f"house, shed have not heard that the job is complete; `atoll serve {served.out}` tells"
        " them when they ask"
    )
    served.server._was_complete = True
    revoked(served.out, "shed")
    asks = threading.Thread(target=watcher.look)

    def say(text: str) -> None:
        if text == "house has not heard that the job is complete; Ctrl-C ends the wait":
            asks.start()

    served.server._files.say = say
    served.server._tell_the_end()
    assert served.server._unaware() == []
    asks.join(60.0)
    assert watcher.reply.state == pb.JOB_COMPLETE
    served.server._write_machines()
    kept = read_machines(served.out)
    assert kept is not None
    assert [(each.name, each.knows_complete) for each in kept.machines] == [("house", True)]


def test_what_a_server_has_told_the_next_one_knows(served: Served, tmp_path: Path) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    served.server.now.tell(pb.JOB_COMPLETE, 60)
    Watcher(folder, machine, served.said.append).look()
    served.server._write_machines()
    again = serving_in(served.out, served.job, now=time.time())
    again.server = replace(again.server, port=free_ports(1)[0])
    said = list[str]()
    again.tell_the_rest(said.append)
    assert said == []
    assert again._unaware() == []


def test_a_server_that_is_started_again_shows_costs_by_the_prices_that_it_was_given_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = list[Prices]()
    monkeypatch.setattr(
        atoll_run, "train", lambda *_, elsewhere, **__: prices.append(elsewhere.prices)
    )
    manifest = tmp_path / "job.yaml"
    manifest.write_text(JOB)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    words = ["serve", str(manifest), "--out", str(tmp_path / "out"), "--listen", listen]
    for more in (["--price-per-gb", "0.08"], []):
        CliRunner().invoke(cli.app, [*words, *more], catch_exceptions=False)
    assert prices == [Prices(other=0.08)] * 2
