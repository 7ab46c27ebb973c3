"""A machine with credentials of a cluster: what it takes from its folder, and shards tell it."""

import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator import cli
from atoll_operator.local import poller
from atoll_operator.local.local_status import JobNow, JobState, job_now
from atoll_operator.local.run_files import RUN_FILE
from atoll_operator.local.startable import free_ports
from atoll_operator.machines.bundle import Bundle, write, write_credentials
from atoll_operator.machines.joined import joining
from atoll_operator.machines.joined.entering import Entered, JoinOptions, check_slots, enter
from atoll_operator.machines.joined.learners import Wanted, place_of, planned
from atoll_operator.machines.joined.watching import Brought, Watcher
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.network.channels import Folder, ServerFiles, server_options
from atoll_protos.network.credentials import Credentials, JobIdentity, Role
from atoll_protos.v1.atoll_pb2_grpc import SyncerServicer, add_SyncerServicer_to_server
from unit.certificate_values import DAY, OWNER, authorities, identity, leaf

ISSUERS = authorities(time.time())
REGION = "eu-west"
BROUGHT = Bundle(
    job="bytes",
    region=REGION,
    learners=3,
    endpoints=("127.0.0.1:1",),
    container='{"command": ["python", "train.py"]}',
)


def credentials(
    owner: JobIdentity = OWNER,
    role: Role = Role.LEARNER,
    region: str = REGION,
    age: float = 0.0,
    machine: str = "",
) -> Credentials:
    """Made `age` days ago, for 30 days."""
    who = replace(identity(role, region, owner), machine=machine)
    return leaf(ISSUERS, who, time.time() - age * DAY)


@pytest.fixture
def place(tmp_path: Path) -> JoinOptions:
    write(tmp_path / "brought", BROUGHT, "{}", credentials())
    return JoinOptions(credentials=tmp_path / "brought", name="house", state=tmp_path / "state")


def source(place: JoinOptions) -> Path:
    assert place.credentials is not None
    return place.credentials


def entered(place: JoinOptions) -> Entered:
    return enter(place, time.time())


def machine(place: JoinOptions) -> Bundle:
    return entered(place).bundle


def test_a_machine_has_the_first_slot_or_those_that_were_said_and_keeps_them(
    place: JoinOptions,
) -> None:
    assert machine(place).slots == ("eu-west-0",)
    said = replace(place, first_slot=1, learners=2)
    one = entered(said)
    folder, found = one.folder, one.bundle
    assert (folder, one.before) == (place.state, None)
    assert found.slots == ("eu-west-1", "eu-west-2")
    assert (found.endpoints, found.container) == (BROUGHT.endpoints, BROUGHT.container)
    write(folder, found)
    assert (entered(place).bundle, entered(place).before) == (found, found)
    assert machine(replace(place, learners=1)).slots == ("eu-west-0",)
    default = entered(replace(place, state=None)).folder
    assert default.name == f"bytes-{OWNER.uid}-house"


def test_a_machine_with_certificates_of_its_own_has_their_slots(place: JoinOptions) -> None:
    write(source(place), replace(BROUGHT, slots=("eu-west-2",)), "{}", credentials())
    assert machine(place).slots == ("eu-west-2",)
    for said in (replace(place, learners=2), replace(place, first_slot=0)):
        with pytest.raises(SpecError, match="is given, and the credentials are for eu-west-2"):
            machine(said)


def test_a_host_of_several_knows_where_it_meets_the_others(place: JoinOptions) -> None:
    write(source(place), replace(BROUGHT, hosts=3, hosts_min=2), "{}", credentials())
    head = machine(replace(place, host=0))
    assert (head.host, head.hosts, head.hosts_min) == (0, 3, 2)
    assert place_of(head) == "127.0.0.1:29400"  # as it reaches the shards
    second = replace(place, host=1)
    with pytest.raises(SpecError, match="--rendezvous: is not given, and host 1 does not know"):
        machine(second)
    one = entered(replace(second, rendezvous="10.0.0.9:29400"))
    folder, found = one.folder, one.bundle
    assert place_of(found) == "10.0.0.9:29400"
    (launcher,) = planned(folder, found, Wanted(command=["train.py"]), place_of(found))
    assert launcher.env["PET_RDZV_ENDPOINT"] == "10.0.0.9:29400"
    assert (launcher.env["PET_NNODES"], launcher.env["ATOLL_HOST"]) == ("2:3", "1")
    write(folder, found)
    assert machine(place) == found  # started again
    training = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_TRAINING)
    check_slots(found, None, status(training))  # by the hosts that are there
    for wrong, words in (({"host": 3}, "is 3, and its"), ({"learners": 2}, "a host is of one")):
        with pytest.raises(SpecError, match=words):
            machine(replace(second, rendezvous="a:1", **wrong))  # type: ignore[arg-type]


def test_learners_read_files_of_the_state_folder_alone(place: JoinOptions) -> None:
    folder = entered(place).folder
    Brought(source(place)).keep(folder)
    assert (folder / RUN_FILE).read_text() == "{}"
    assert Credentials.read(folder / "tls") == Credentials.read(source(place))
    for file in [*source(place).iterdir(), *(folder / "tls").rglob("tls.key")]:
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learners": 4}, "--learners: eu-west-0, .*eu-west-3 wanted, and .* has 3 learners"),
        ({"first_slot": 3}, "--learners: eu-west-3 wanted, and region eu-west has 3 learners"),
        ({"credentials": Path("/nowhere")}, "--credentials: /nowhere/job.json is not there"),
    ],
)
def test_what_was_not_brought_is_refused(
    place: JoinOptions, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        machine(replace(place, **change))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (credentials(age=31), "expired at .*bring new ones: atoll credentials bytes -n team"),
        (credentials(region="us-east"), "is that of region us-east, and region eu-west is needed"),
        (credentials(role=Role.OPERATOR), "is that of role operator, and learner is needed"),
        (replace(credentials(), key=credentials().key), "is not the key of the certificate"),
    ],
)
def test_certificates_that_are_not_of_its_learners_are_refused(
    place: JoinOptions, changed: Credentials, words: str
) -> None:
    write(source(place), BROUGHT, "{}", changed)
    with pytest.raises(SpecError, match=words):
        machine(place)


def test_a_state_folder_is_of_one_machine_of_one_job(place: JoinOptions) -> None:
    assert place.state is not None
    own = machine(place)
    write(place.state, own)
    with pytest.raises(SpecError, match="is of a machine with credentials of a cluster"):
        machine(JoinOptions(server="127.0.0.1:1", name="house", state=place.state))
    for other, words in (
        (replace(own, server="10.0.0.1:7700"), "is of a machine of `atoll serve`"),
        (replace(own, job="other"), "is of a machine of job other, region eu-west"),
        (replace(own, region="us"), "is of a machine of job bytes, region us"),
    ):
        write(place.state, other)
        with pytest.raises(SpecError, match=words):
            machine(place)


def status(*slots: pb.SlotStatus, **more: Any) -> pb.StatusReply:
    return pb.StatusReply(state=pb.SHARD_SERVING, slots=slots, **more)


def test_a_slot_that_another_has_is_not_taken_unsaid(place: JoinOptions) -> None:
    mine = machine(place)
    check_slots(mine, None, None)  # nothing answers: the shards refuse it later
    free = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_LOST)
    taken = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_STALLED)
    other = pb.SlotStatus(slot="eu-west-1", state=pb.SLOT_TRAINING)
    check_slots(mine, None, status(free, other))
    with pytest.raises(SpecError, match="eu-west-0 is held by a learner of another machine"):
        check_slots(mine, None, status(taken))
    check_slots(mine, mine, status(taken))  # its own learner, whose end was not noticed yet
    owned = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_LOST, owner_uid="pod")
    with pytest.raises(SpecError, match="eu-west-0 belongs to a pod, so a cluster has learners"):
        check_slots(mine, mine, status(owned))


def test_the_manifest_of_the_syncers_cluster_counts_as_it_is_now(place: JoinOptions) -> None:
    mine = machine(replace(place, first_slot=1))
    check_slots(mine, mine, status(learners={REGION: 2}))
    with pytest.raises(SpecError, match="eu-west-1 wanted, and region eu-west has 1 learners"):
        check_slots(mine, mine, status(learners={REGION: 1}))
    with pytest.raises(SpecError, match="region eu-west has 0 learners"):
        check_slots(mine, mine, status(learners={"us-east": 1}))


def test_how_the_job_stands_follows_from_what_its_shards_say() -> None:
    def reply(
        state: pb.ShardState, intent: pb.Intent = pb.INTENT_RUN, **more: Any
    ) -> pb.StatusReply:
        return pb.StatusReply(state=state, intent=intent, tick=7, steps=60, **more)

    serving, final = reply(pb.SHARD_SERVING), reply(pb.SHARD_FINAL)
    for replies, state in (
        ((serving, serving), JobState.TRAINING),
        ((serving, None), JobState.UNKNOWN),
        ((None, serving), JobState.UNKNOWN),
        ((final, serving), JobState.TRAINING),
        ((final, final), JobState.FINAL),
        ((reply(pb.SHARD_SERVING, pb.INTENT_SUSPEND), None), JobState.SUSPENDED),
        ((reply(pb.SHARD_COMPLETE, pb.INTENT_SUSPEND), None), JobState.COMPLETE),
    ):
        assert job_now(replies) == JobNow(state=state, tick=7, length=60)
    failed = job_now([None, reply(pb.SHARD_SERVING, pb.INTENT_FAIL, why="QuorumLost")])
    assert (failed.state, failed.why) == (JobState.FAILED, "QuorumLost")


class Shard(SyncerServicer):
    """A real server with mutual TLS that answers Status alone."""

    def __init__(self, folder: Path) -> None:
        own = leaf(ISSUERS, identity(Role.SHARD), time.time())
        for name, data in (("tls.crt", own.certificate), ("tls.key", own.key)):
            (folder / name).write_bytes(data)
        (folder / "ca.crt").write_bytes(own.authority)
        (port,) = free_ports(1)
        self.place, self.refusal = f"127.0.0.1:{port}", ""
        self.server = grpc.server(futures.ThreadPoolExecutor(1), options=server_options())
        add_SyncerServicer_to_server(self, self.server)
        files = ServerFiles(Folder(path=str(folder)), own)
        self.server.add_secure_port(self.place, files.credentials())

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 - gRPC's name
        if self.refusal:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, self.refusal)
        return status(tick=9, steps=60)


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    monkeypatch.setattr(poller, "CALL_SECONDS_MAX", 20.0)  # a busy machine
    (tmp_path / "shard").mkdir()
    found = Shard(tmp_path / "shard")  # type: ignore[abstract]
    found.server.start()
    yield found
    found.server.stop(None).wait()


@pytest.fixture
def watcher(place: JoinOptions, shard: Shard) -> Watcher:
    one, said = entered(place), list[str]()
    found = Brought(source(place))
    found.keep(one.folder)
    own = replace(one.bundle, endpoints=(shard.place,))
    return Watcher(one.folder, own, said.append, found)


def brought(watcher: Watcher) -> Path:
    assert isinstance(watcher.source, Brought)
    return watcher.source.folder


def said_by(watcher: Watcher) -> list[str]:
    lines: list[str] = watcher.say.__self__  # type: ignore[attr-defined]
    return lines


def test_it_asks_the_shards_with_its_learners_certificate(watcher: Watcher) -> None:
    watcher.look()
    assert watcher.now == JobNow(state=JobState.TRAINING, tick=9, length=60)
    assert not watcher.fails
    assert said_by(watcher) == []


def test_new_credentials_are_taken_and_those_of_another_run_are_not(watcher: Watcher) -> None:
    watcher.look()
    new = credentials()
    write(brought(watcher), BROUGHT, "{}", new)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (line,) = said_by(watcher)
    assert line.endswith("are new: learners take them as they run")
    assert watcher.now.tick == 9  # asked again, on a connection with the new ones
    again = JobIdentity(namespace="team", job="bytes", uid="0b-2")
    write(brought(watcher), BROUGHT, "{}", credentials(again))
    for _ in range(3):
        watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (line,) = said_by(watcher)[1:]
    assert "is that of UID 0b-2, and UID 0b-1 is needed" in line
    assert line.endswith("; the former credentials stay")


def test_those_of_one_machine_are_renewed_by_its_own(watcher: Watcher) -> None:
    one, two = (credentials(machine=each) for each in ("one", "two"))
    write_credentials(watcher.folder / "tls", one)
    write(brought(watcher), BROUGHT, "{}", two)
    watcher.look()
    watcher.look()
    (line,) = said_by(watcher)
    assert "tls.crt: is that of machine two, and machine one is needed" in line
    new = credentials(machine="one", age=21)
    write(brought(watcher), BROUGHT, "{}", new)
    watcher.look()
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    how = f"--region eu-west --machine one --files {brought(watcher)}"
    assert said_by(watcher)[-1].endswith(how)


def test_files_that_are_being_copied_are_no_fault(watcher: Watcher) -> None:
    watcher.look()
    had, new = Credentials.read(brought(watcher)), credentials()
    (brought(watcher) / "tls.key").write_bytes(new.key)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == had
    assert said_by(watcher) == []
    (brought(watcher) / "tls.crt").write_bytes(new.certificate)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (brought(watcher) / "tls.key").unlink()
    for _ in range(3):
        watcher.look()
    (line,) = said_by(watcher)[1:]
    assert "tls.key: is missing" in line
    assert watcher.now.tick == 9


def test_a_revoked_region_trains_on_until_new_credentials_come(
    watcher: Watcher, shard: Shard
) -> None:
    shard.refusal = "the certificates of region eu-west have been revoked"
    watcher.look()
    watcher.look()
    assert watcher.refusal is None
    (line,) = said_by(watcher)
    assert line.startswith(f"shard 0 at {shard.place} refuses: {shard.refusal}; learners train on")
    shard.refusal = ""
    watcher.look()
    assert said_by(watcher)[1:] == [f"shard 0 at {shard.place} answers again"]


def test_why_nothing_answers_is_said(watcher: Watcher, shard: Shard) -> None:
    shard.server.stop(None).wait()
    watcher.look()
    assert said_by(watcher)[0].startswith(f"shard 0 at {shard.place} does not answer; learners")
    assert watcher.fails


def test_another_authority_is_named(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "CALL_SECONDS_MAX", 2.0)
    foreign = leaf(authorities(time.time()), identity(region=REGION), time.time())
    write_credentials(watcher.folder / "tls", foreign)
    write(brought(watcher), BROUGHT, "{}", foreign)
    watcher.look()
    assert "refuses: its certificate, of" in said_by(watcher)[0]
    assert "was not issued by an authority in this process's ca.crt" in said_by(watcher)[0]


def test_new_ones_are_asked_for_once_when_two_thirds_are_over(watcher: Watcher) -> None:
    now = time.time()
    for days, lines in ((19, 0), (21, 1), (22, 1)):
        watcher.clock = lambda days=days: now + days * DAY  # type: ignore[misc]
        watcher.look()
        assert len(said_by(watcher)) == lines
    how = f"atoll credentials bytes -n team --region eu-west --files {brought(watcher)}"
    assert said_by(watcher)[0].endswith(f"bring new ones with {how}")


def test_silence_is_spoken_of_ever_more_rarely(watcher: Watcher) -> None:
    said, away = said_by(watcher), AwayError("shard 0", "is away", "wait")
    for minute in range(9):
        watcher._fails(away, 60.0 * minute)
        watcher._fails(OSError("full"), 60.0 * minute + 1.0)
    assert len(said) == 5, said
    assert said[0] == "shard 0 is away; learners train on, and it is asked again and again"
    assert [each.split("has not answered for ")[1].split(";")[0] for each in said[1:]] == [
        *("60 s", "2 min", "4 min", "8 min"),
    ]
    assert said[-1].endswith(watcher.source.remedy)
    watcher.look()
    assert said[-1] == f"{watcher.place} answers again"


def test_the_command_takes_one_place_and_its_script(
    place: JoinOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def joins(*given: Any) -> int:
        found.append(given[:2])
        return 0

    monkeypatch.setattr(joining, "join", joins)
    own = ["join", "--credentials", str(place.credentials), "--name", "house"]

    def refused(*words: str) -> str:
        return str(CliRunner().invoke(cli.app, words).exception)

    done = CliRunner().invoke(cli.app, [*own, "--first-slot", "2", "--", "train.py", "--lr=2"])
    assert done.exit_code == 0, done.output
    (options, wanted) = found.pop()
    assert options == replace(place, first_slot=2, state=None)
    assert wanted.command == ["train.py", "--lr=2"]
    assert CliRunner().invoke(cli.app, own).exit_code == 0
    assert found.pop()[1].command == []
    assert "127.0.0.1:7700 is given, and so are --credentials" in refused(*own, "127.0.0.1:7700")
    assert refused(*own, "--token", "t").startswith("--token: is not for --credentials")
    assert refused(*own, "--region", "eu").startswith("--region: is not for --credentials")
    assert refused("join").startswith("HOST:PORT: is missing")
    first = refused("join", "127.0.0.1:7700", "--first-slot", "1")
    assert first.startswith("--first-slot: is for --credentials")
    assert found == []
