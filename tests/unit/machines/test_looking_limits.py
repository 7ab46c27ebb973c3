"""How many look at once, what a slow reader and a guesser get, and what is left of those who go."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.machines.joined.entering import enter
from atoll_operator.machines.looking.served import connect
from atoll_operator.machines.server import looking
from atoll_operator.machines.server.looking import LOOKERS_MAX, STALLED_SECONDS, Looker, Lookers
from atoll_operator.machines.server_link import ServerLink, proved
from atoll_operator.machines.token import Token
from atoll_protos.errors import AwayError, SpecError
from unit.machines.laptop_side import atoll, line, until, with_run
from unit.machines.served import Served


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with with_run(tmp_path, monkeypatch) as found:
        yield found


def test_who_leaves_an_export_leaves_no_process_and_no_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    code = (
        "import os, sys, tempfile, time, pathlib; folder = tempfile.mkdtemp();"
        f"pathlib.Path({str(note)!r}).write_text(str(os.getpid()) + ' ' + folder);"
        "sys.stdout.buffer.write(bytes(1 << 20)); sys.stdout.flush(); time.sleep(600)"
    )
    monkeypatch.setattr(looking, "exporting", lambda *_: [sys.executable, "-c", code])
    token = Token.parse(line(served, look=True).split()[-1])
    link = proved(served.place, token.digest)
    asked = pb.LookRequest(token=token.name, secret=token.secret, sight=pb.SIGHT_EXPORT)
    with link.look(asked) as replies:
        assert next(iter(replies)).model
        pid, folder = note.read_text().split()
        with pytest.raises(SpecError, match="1 look at this at once"):
            atoll("export", served.place, "--token", str(token), "--out", str(tmp_path / "out"))
    until(lambda: not (Path(folder).exists() or Path(f"/proc/{pid}").exists()))
    until(lambda: not served.server.looking.exports._taken)


class Context:
    """A call that can only be cancelled."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_who_reads_nothing_gives_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    places = Lookers(2)
    lazy, busy = (Looker(Context()) for _ in range(2))
    with places.one(lazy), places.one(busy):
        lazy.rests_since = now[0]
        now[0] += STALLED_SECONDS - 1
        with (
            pytest.raises(SpecError, match="2 look at this at once"),
            places.one(Looker(Context())),
        ):
            pass
        now[0] += 2  # the other one has waited for the server, not the server for it
        with places.one(Looker(Context())):
            assert (lazy.context.cancelled, busy.context.cancelled) == (True, False)


def test_a_reader_does_not_wait_while_the_server_has_nothing_for_it(served: Served) -> None:
    seen = list[float | None]()
    found = served.server.looking

    class Ending(Context):
        def set_compression(self, kind: object) -> None:
            pass

        def is_active(self) -> bool:
            seen.append(found.places._taken[0].rests_since)
            return False

    asked = pb.LookRequest(sight=pb.SIGHT_LOGS, follow=True)
    for _ in found.replies(asked, Ending(), lambda: None):
        seen.append(found.places._taken[0].rests_since)
    assert seen[-1] is None
    assert None not in seen[:-1]


def test_machines_are_served_while_as_many_as_may_look_and_read_nothing(
    served: Served, tmp_path: Path
) -> None:
    (served.out / "logs/shard-0.log").write_bytes(os.urandom(8 << 20))  # more than is on its way
    token = Token.parse(line(served, look=True).split()[-1])
    link = proved(served.place, token.digest)
    asked = pb.LookRequest(token=token.name, secret=token.secret, sight=pb.SIGHT_LOGS, follow=True)
    with ExitStack() as open_:
        for _ in range(LOOKERS_MAX):
            next(iter(open_.enter_context(link.look(asked))))
        with pytest.raises(AwayError, match="8 look at this at once"):
            atoll("status", served.place, "--token", str(token))
        enter(served.options(tmp_path / "a", served.token()))
    until(lambda: not served.server.looking.places._taken)
    atoll("status", served.place, "--token", str(token))


def test_who_follows_and_hears_nothing_gives_its_place_to_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = line(served, look=True).split()[-1]
    job, taken = connect(served.place, token), served.server.looking.places._taken
    with ExitStack() as open_:
        for _ in range(LOOKERS_MAX):
            open_.enter_context(job.copy("logs", follow=True))
        until(lambda: all(each.rests_since is not None for each in taken))
        with pytest.raises(AwayError, match="8 look at this at once"):
            atoll("status", served.place)
        monkeypatch.setattr(looking, "STALLED_SECONDS", 0.0)
        atoll("status", served.place)
        served.server.looking.over.set()
        with pytest.raises(AwayError, match="for others who look"):
            open_.close()


def test_wrong_secrets_are_limited_by_address_and_name(served: Served, tmp_path: Path) -> None:
    _, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    link = ServerLink(served.place, machine.anchor)
    token = Token.parse(line(served, look=True).split()[-1])
    guess = pb.ChangeRequest(token=token.name, secret="wrong" * 8)
    for call in (
        lambda: link.watch("house", "wrong"),
        lambda: link.enter(pb.EnterRequest(token="abcdef", secret="wrong")),
        lambda: link.change(guess),
    ):
        for _ in range(10):
            with pytest.raises(SpecError, match=r"wrong secret|not a token|is wrong"):
                call()
        with pytest.raises(AwayError, match="too many wrong tokens from here"):
            call()
    with pytest.raises(SpecError, match="too many wrong tokens"):
        atoll("status", served.place, "--token", str(token))
    assert len([each for each in served.said if "was refused" in each]) == 10
    other = line(served, look=True).split()[-1]
    assert "tiny" in atoll("status", served.place, "--token", other)


def test_one_look_at_a_time_uses_no_thread_for_ever(served: Served) -> None:
    token = line(served, look=True).split()[-1]
    for _ in range(3):
        with connect(served.place, token).copy("logs", follow=True):
            pass
    until(lambda: not served.server.looking.places._taken)
    assert not [each for each in threading.enumerate() if each.name == "look"]
