"""A machine enters over the real port, renews and watches; and who is not served."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator import cli
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import expected
from atoll_operator.authority.job_authority import make_anchor, make_key, request_for
from atoll_operator.cli.tokens import listed, made, revoked
from atoll_operator.local import last_status, local_status
from atoll_operator.local.local_status import ShownMachine, read_machines
from atoll_operator.local.poller import Poller
from atoll_operator.local.run_files import MANIFEST_FILE, STATUS_FILE
from atoll_operator.local.startable import free_ports
from atoll_operator.machines import bundle as bundles
from atoll_operator.machines.bundle import SERVER_NAME, Token
from atoll_operator.machines.joined import server_link
from atoll_operator.machines.joined.server_link import ServerLink, proved
from atoll_operator.machines.joined.watching import Server
from atoll_operator.machines.server import join_port
from atoll_operator.machines.server.register import AUTHORITY_FILE, with_machine
from atoll_operator.machines.server.serving import ANCHOR_FILE, anchor_in, serving_in
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import PROTOCOL
from atoll_protos.network.credentials import Credentials
from unit.local.test_local_status import NOW, job
from unit.machines.served import JOB, Served, enter, watcher_of


def test_a_machine_enters_and_is_the_same_one_afterwards(served: Served, tmp_path: Path) -> None:
    folder, machine, new = enter(served.options(tmp_path / "a", served.token(uses=1), learners=2))
    assert (new, machine.slots, machine.region) == (True, ("us-0", "us-1"), "us")
    credentials = Credentials.read(folder / "tls")
    identity = credentials.check(time.time())
    assert (identity.region, identity.role, identity.machine) == ("us", "learner", "house")
    assert identity.owner == served.server.certificates.owner
    again = enter(served.options(tmp_path / "a"))
    assert again == (folder, machine, False)
    assert [each for each in served.said if "house has entered from 127.0.0.1" in each]
    for file in [*folder.glob("*.json"), folder / "machine.key", *folder.rglob("tls.key")]:
        assert file.stat().st_mode & 0o077 == 0
    assert "house" in listed(served.out, time.time())


def test_the_same_folder_is_the_same_server(served: Served) -> None:
    again = serving_in(served.out, served.job, now=time.time())
    assert again.server == served.server.server
    assert (again.listen, again.regions) == ("127.0.0.1", frozenset({"here"}))
    assert again.anchor == served.server.anchor
    assert again.certificates.bundle() == served.server.certificates.bundle()


def test_a_region_of_this_machine_may_leave_the_job(served: Served) -> None:
    """Started again, the server has its learners as little as anybody else."""
    left = parse(JOB, ("spec.regions=[{name: us}, {name: eu}]",))
    again = serving_in(served.out, left, now=time.time())
    assert again.regions == frozenset()


def test_a_token_is_for_the_regions_that_the_manifest_has_now(served: Served) -> None:
    """The run has followed it before a person has brought the token to a machine."""
    (served.out / MANIFEST_FILE).write_text(JOB.replace("{name: eu}", "{name: asia}"))
    assert made(served.out, time.time(), region="asia").startswith("ATOLL_TOKEN=")
    with pytest.raises(SpecError, match="eu is no region of the job; use one of us, asia, here"):
        made(served.out, time.time(), region="eu")


def test_a_machine_that_is_refused_is_answered_why_and_leaves_nothing(
    served: Served, tmp_path: Path
) -> None:
    line = made(served.out, time.time(), hours=1.0)
    any_region = Token.parse(line.split()[0].partition("=")[2])
    for token, more, words in (
        (served.token(hours=-1.0), {}, "not a token of this job|has expired"),
        (any_region, {"region": "here"}, "here is no region for other machines"),
    ):
        with pytest.raises(SpecError, match=words):
            enter(served.options(tmp_path / "b", token, **more))
    assert not (tmp_path / "b").exists()
    assert "us-" not in listed(served.out, time.time())


def test_an_answer_that_is_lost_costs_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is on the disk first: whoever asks again with it is the same machine."""
    options = replace(served.options(tmp_path, served.token(uses=1)), state=None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with monkeypatch.context() as patched:
        lost = AwayError(served.place, "does not answer", "try again")
        answered = ServerLink.enter

        def loses(link: ServerLink, asked: pb.EnterRequest) -> pb.EnterReply:
            answered(link, asked)
            raise lost

        patched.setattr(ServerLink, "enter", loses)
        with pytest.raises(AwayError):
            enter(options)
    (before,) = served.server.book.read().machines
    folder, machine, _ = enter(options)
    assert served.server.book.read().machines == (before,)
    assert (machine.name, machine.slots) == (before.name, before.slots)
    assert Credentials.read(folder / "tls").certificate.decode() == before.certificate
    assert [each.name for each in (tmp_path / "state" / "atoll").iterdir()] == [folder.name]


def test_a_revoked_machine_is_told_and_enters_again_with_a_new_token_and_key(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher, key = watcher_of(folder, machine), (folder / "machine.key").read_bytes()
    watcher.source.renew(watcher)
    revoked(served.out, "house")
    watcher.refused = {"us-0": "now there is something to say"}
    watcher.look()
    assert "it was revoked" in str(watcher.refusal)
    stolen = pb.EnterRequest(token="", request=request_for(key), name="house")
    stolen.token, stolen.secret = (token := served.token()).name, token.secret
    with pytest.raises(SpecError, match="it was revoked"):
        proved(served.place, token.digest).enter(stolen)
    _, again, new = enter(served.options(tmp_path / "a", token))
    assert (new, again.name, again.slots) == (True, "house-2", machine.slots)
    assert (folder / "machine.key").read_bytes() != key


def test_a_job_that_fails_before_its_shards_answer_is_known_to_its_machines(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher = watcher_of(folder, replace(machine, endpoints=("127.0.0.1:1",)))
    served.server.fail("StoreLost: commits is no folder")
    watcher.look()
    assert "the job: has failed: StoreLost: commits is no folder" in str(watcher.refusal)


def test_a_certificate_is_renewed_when_two_thirds_are_over_or_another_authority_signs(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher, now = watcher_of(folder, machine), time.time()
    watcher.source.renew(watcher)

    def renewed(days: float, *, said: bool = False) -> bool:
        before = Credentials.read(folder / "tls")
        clock = SimpleNamespace(time=lambda: now + 86_400 * days, monotonic=time.monotonic)
        watcher.clock = clock.time
        monkeypatch.setattr(join_port, "time", clock)
        watcher._failed_at = 1.0 if said else None  # the shards do not answer
        watcher.source.renew(watcher)
        return Credentials.read(folder / "tls") != before

    assert [renewed(days) for days in (19, 21, 31, 51)] == [False, True, False, True]
    assert not renewed(51, said=True)
    (served.out / "machines" / "authority.json").unlink()
    served.server.certificates.keep(now)
    assert not renewed(51)
    assert renewed(51, said=True)
    assert Credentials.read(folder / "tls").authority == served.server.certificates.bundle()


def test_the_token_proves_the_server_before_anything_is_sent(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_link, "CALL_SECONDS_MAX", 1.0)
    other = Token(served.token().name, "s" * 32, "0" * 64)
    with pytest.raises(SpecError, match="is not the server of the token"):
        enter(served.options(tmp_path / "b", other))
    assert not served.said
    false = make_anchor(SERVER_NAME, time.time(), 1000.0)
    with pytest.raises(AwayError):
        ServerLink(served.place, false.certificate.decode()).enter(pb.EnterRequest())


def test_a_state_folder_is_of_one_server(served: Served, tmp_path: Path) -> None:
    enter(served.options(tmp_path / "a", served.token()))
    foreign = Token(served.token().name, "s" * 32, "0" * 64)
    with pytest.raises(SpecError, match="another server than the machine"):
        enter(served.options(tmp_path / "a", foreign))
    with pytest.raises(SpecError, match="--region: is eu, and it is us for the machine"):
        enter(served.options(tmp_path / "a", region="eu"))
    with pytest.raises(SpecError, match="--learners: is 2, and it is 1 for the machine"):
        enter(served.options(tmp_path / "a", learners=2))
    with pytest.raises(SpecError, match="--token: is missing"):
        enter(served.options(tmp_path / "b"))


@pytest.mark.parametrize("theirs", [PROTOCOL - 1, PROTOCOL + 1], ids=["older", "newer"])
def test_both_versions_are_named_where_they_differ(
    theirs: int, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "before", served.token()))
    monkeypatch.setattr(server_link, "PROTOCOL", theirs)
    words = rf"protocol {theirs} \(Atoll .*\), and the server has {PROTOCOL} \(Atoll "
    with pytest.raises(SpecError, match=words) as refused:
        enter(served.options(tmp_path / "a", served.token()))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a").exists()
    with pytest.raises(SpecError, match=words):  # it was known already
        Server(ServerLink(served.place, machine.anchor)).enter(folder, machine)


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A port that is no Atoll."""
    with socket.create_server(("127.0.0.1", 0)) as port:

        def serve() -> None:
            connection, _ = port.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{port.getsockname()[1]}"
        thread.join(10)


def in_plain_text(connection: socket.socket) -> None:
    connection.recv(2000)
    connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")


def test_what_is_no_server_is_named() -> None:
    with (
        answering(lambda _: None) as place,
        pytest.raises(SpecError, match=r"it hangs up|otherwise"),
    ):
        proved(place, "0" * 64)
    with (
        answering(in_plain_text) as place,
        pytest.raises(SpecError, match="it answers in plain text"),
    ):
        proved(place, "0" * 64)
    (port,) = free_ports(1)
    with pytest.raises(SpecError, match=r"nothing answers .*refused.*firewalls"):
        proved(f"127.0.0.1:{port}", "0" * 64)
    with pytest.raises(SpecError, match="is not host:port"):
        proved("127.0.0.1", "0" * 64)


def test_a_port_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_link, "DIAL_SECONDS_MAX", 0.2)
    over = threading.Event()
    with answering(lambda _: over.wait(10)) as place:
        with pytest.raises(SpecError, match="has said nothing"):
            proved(place, "0" * 64)
        over.set()


def test_a_request_for_a_key_of_another_kind_takes_no_slot_and_no_use(served: Served) -> None:
    token = served.token(uses=1)
    link = proved(served.place, token.digest)
    asked = pb.EnterRequest(
        token=token.name, secret=token.secret, name="house", request=b"nonsense"
    )
    with pytest.raises(SpecError, match="request: cannot be signed"):
        link.enter(asked)
    asked.request = request_for(make_key())
    assert json.loads(link.enter(asked).bundle)["slots"] == ["us-0"]


def test_a_machine_finds_its_folder_by_name_and_by_the_servers_certificate(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = replace(served.options(tmp_path, served.token()), state=None)
    folder, machine, _ = enter(options)
    uid = served.server.certificates.owner.uid[:8]
    assert folder == tmp_path / "state" / "atoll" / f"tiny-{uid}-house"
    assert enter(replace(options, token=""))[:2] == (folder, machine)
    assert enter(replace(options, token=str(served.token())))[:2] == (folder, machine)
    port = served.server.server.port
    moved = enter(replace(options, token="", server=f"localhost:{port}"))
    assert moved[:2] == (folder, replace(machine, server=f"localhost:{port}"))
    _, second, new = enter(replace(options, name="other", token=str(served.token())))
    assert (new, second.slots) == (True, ("us-1",))


def test_credentials_that_cannot_be_read_are_made_again(served: Served, tmp_path: Path) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher = watcher_of(folder, machine)
    watcher.source.renew(watcher)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (folder / "tls" / "..data" / name).write_text("")
        watcher.source.renew(watcher)
        Credentials.read(folder / "tls").check(time.time())


def test_shards_are_told_which_slots_are_whose(served: Served, tmp_path: Path) -> None:
    enter(served.options(tmp_path / "a", served.token(), learners=2))
    (one,) = served.server.listed(expected(served.job)).machines
    assert (one.name, one.slots) == ("house", ("us-0", "us-1"))
    revoked(served.out, "house")
    assert served.server.listed(expected(served.job)).machines == ()


def test_a_region_cannot_come_here_while_a_machine_has_its_learners(
    served: Served, tmp_path: Path
) -> None:
    enter(served.options(tmp_path / "a", served.token()))
    for here, words in (("us", "us has learners on machine house"), ("mars", "is no region")):
        with pytest.raises(SpecError, match=words):
            serving_in(served.out, served.job, here=[here], now=time.time())


def test_its_folder_is_not_run_without_its_machines(served: Served) -> None:
    """The shards would speak plain text, and learners of other machines would be processes here."""
    (served.out / MANIFEST_FILE).write_text(JOB)
    words = ["run", str(served.out), "--resume"]
    refused = str(CliRunner().invoke(cli.app, words).exception)
    assert refused.endswith(f"continue it: atoll serve {served.out}"), refused
    status = local_status.status(job(), [None, None], NOW)
    (served.out / STATUS_FILE).write_text(json.dumps(status.to_object()))
    found = last_status.read_status(served.out).to_object()
    said = {each["type"]: each.get("message", "") for each in found["conditions"]}
    assert said["Ready"] == f"it was killed; atoll serve {served.out} continues"


def test_no_edit_takes_a_learner_from_a_machine(served: Served, tmp_path: Path) -> None:
    enter(served.options(tmp_path / "a", served.token(), learners=2))
    (served.out / MANIFEST_FILE).write_text(JOB)
    words = ["edit", str(served.out), "--learners", "us=1"]
    refused = CliRunner().invoke(cli.app, words).exception
    assert "machine house has us-1; first take the machine out: `atoll tokens" in str(refused)
    assert (served.out / MANIFEST_FILE).read_text() == JOB
    revoked(served.out, "house")
    assert CliRunner().invoke(cli.app, words).exit_code == 0


def test_hosts_of_a_learner_hear_from_the_server_where_they_meet(
    served: Served, tmp_path: Path
) -> None:
    token, two = served.token(), {"hosts": 2}
    later, other, _ = enter(served.options(tmp_path / "b", token, host=1, **two))
    folder, first, _ = enter(served.options(tmp_path / "a", token, host=0, **two))
    assert first.slots == other.slots == ("us-0",)
    assert (other.host, other.hosts) == (1, 2)
    waits, head = watcher_of(later, other), watcher_of(folder, first)
    waits.source.renew(waits)
    assert waits.bundle.rendezvous == ""
    for place in ("10.0.0.2:29400", "10.0.0.3:29400"):
        head.meeting, waits.meeting = place, "10.6.6.6:1"  # which is not host 0
        for watcher in (head, waits, waits):
            watcher.source.renew(watcher)
        assert waits.bundle.rendezvous == place
        assert bundles.read(later) == waits.bundle
    listed_slots = {x.name: x.slots for x in served.server.listed(expected(served.job)).machines}
    assert listed_slots == {"house": ("us-0",), "house-2": ("us-0",)}
    assert "us-0 host 1 of 2" in listed(served.out, time.time())


def test_a_host_is_itself_again_and_no_other_one(served: Served, tmp_path: Path) -> None:
    token = served.token()
    with pytest.raises(SpecError, match="--rendezvous: "):
        enter(served.options(tmp_path / "a", token, hosts=2, host=0, rendezvous="nowhere"))
    said = {"rendezvous": "10.0.0.2:29400"}
    _, machine, _ = enter(served.options(tmp_path / "a", token, hosts=2, host=0, **said))
    again = enter(served.options(tmp_path / "a", hosts=2, host=0))
    assert again[1:] == (machine, False)
    moved = enter(served.options(tmp_path / "a", rendezvous="10.0.0.9:29400"))[1]
    assert moved == replace(machine, rendezvous="10.0.0.9:29400")
    for other in ({"host": 1}, {"hosts": 3}, {"slot": "us-1"}):
        with pytest.raises(SpecError, match="for the machine in"):
            enter(served.options(tmp_path / "a", **other))


def test_a_learner_of_several_hosts_gets_no_launcher_of_the_servers_python(
    served: Served, tmp_path: Path
) -> None:
    job = parse(JOB.replace("  steps", "  learner: {hosts: 2, hostsMin: 1}\n  steps"))
    served.server.edited(job)
    _, machine, _ = enter(served.options(tmp_path / "a", served.token(), host=1))
    assert (machine.hosts, machine.hosts_min) == (2, 1)
    assert sys.executable not in machine.container


def test_the_server_shows_where_its_machines_are_and_what_is_refused(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))

    def seen() -> tuple[ShownMachine, ...]:
        status = local_status.status(job(), [None, None], NOW)
        served.server.shown_at = -10.0
        resting = Poller(job(), ("127.0.0.1:1",)).resting(status, 1.0)
        found = served.server.machines(resting)
        kept = read_machines(served.out)
        assert kept is not None
        assert kept.machines == tuple(found)
        return kept.machines

    (one,) = seen()
    assert (one.name, one.region, one.slots) == ("house", "us", ("us-0",))
    assert (one.address, one.revoked) == ("127.0.0.1", False)
    watcher = watcher_of(folder, machine)
    for why, count in (("another model", 1), ("another model", 1), ("", 1)):
        watcher.refused = {"us-0": why, "eu-0": "is not its own"}
        watcher.source.renew(watcher)
        assert sum("us-0 of machine house is refused" in line for line in served.said) == count
        assert served.server.refused() == ({"us-0": why} if why else {})
    revoked(served.out, "house")
    assert seen() == ()  # it has moved nothing, so nothing of it stays


def test_a_state_folder_on_two_machines_is_named(served: Served, tmp_path: Path) -> None:
    enter(served.options(tmp_path / "a", served.token()))
    book = served.server.book
    (machine,) = book.read().machines
    elsewhere = replace(machine, address="192.0.2.7")
    book.change(lambda register: (with_machine(register, elsewhere), None))
    again, found, _ = enter(served.options(tmp_path / "a"))
    Server(ServerLink(found.server, found.anchor)).enter(again, found)
    (line,) = [each for each in served.said if "asks from" in each]
    assert line.startswith("machine house asks from 127.0.0.1 now, and did from 192.0.2.7")


def test_a_shard_that_has_not_answered_may_still_have_learners_of_other_machines(
    served: Served, tmp_path: Path
) -> None:
    def leaving(*replies: pb.StatusReply | None) -> bool:
        return served.server.leaving(SimpleNamespace(replies=replies))  # type: ignore[arg-type]

    there = pb.StatusReply(slots=[pb.SlotStatus(slot="us-0", state=pb.SLOT_TRAINING)])
    left = pb.StatusReply(slots=[pb.SlotStatus(slot="us-0", state=pb.SLOT_LEFT)])
    own = pb.StatusReply(slots=[pb.SlotStatus(slot="here-0", state=pb.SLOT_TRAINING)])
    assert leaving(left, there)
    assert leaving(left, None)
    assert not leaving(left, own)
    enter(served.options(tmp_path / "a", served.token()))
    served.server.leaving_at = float("-inf")
    assert leaving(left, own)  # its machine may not have asked the shards yet
    served.server.leaving_since -= 10.0
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


def test_a_machine_enters_once_and_does_not_train(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_TOKEN", str(served.token(uses=1)))
    state = tmp_path / "state"
    words = ["join", served.place, "--name", "house", "--state", str(state), "--enter-only"]
    words += ["--", "no-such-program"]  # which is not even looked for
    for _ in range(2):
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0, done.output
        assert "machine house of job tiny: us-0" in done.stderr
        assert "started with it, it trains" in done.stderr
    machine = bundles.read(state)
    assert machine is not None
    assert machine.slots == ("us-0",)
    assert not (state / "logs").exists()
    assert [each for each in served.said if "has entered" in each] == served.said[-1:]
