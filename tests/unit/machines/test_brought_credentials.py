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
from atoll_operator.local.folder.run_files import RUN_FILE
from atoll_operator.local.progress import poller
from atoll_operator.local.supervision.ports import free_ports
from atoll_operator.machines import brought
from atoll_operator.machines.brought import Brought
from atoll_operator.machines.joined import folder as joined_folder
from atoll_operator.machines.joined import hosts, joining
from atoll_operator.machines.joined.credentials import (
    BroughtOptions,
    ShardWatcher,
    check_slots,
    keep,
    machine_of,
    told,
)
from atoll_operator.machines.joined.entering import JoinOptions, enter
from atoll_operator.machines.joined.folder import Joined
from atoll_operator.machines.joined.learners import Wanted, planned
from atoll_protos.errors import SpecError
from atoll_protos.network.channels import Folder, ServerFiles, server_options
from atoll_protos.network.credentials import Credentials
from atoll_protos.network.identity import JobIdentity, Role
from atoll_protos.network.services import Service, add_handlers
from unit.certificate_values import DAY, OWNER, authorities, identity, leaf

ISSUERS = authorities(time.time())
REGION = "eu-west"
BROUGHT = Brought(
    job="bytes",
    region=REGION,
    learners=3,
    endpoints=("127.0.0.1:1",),
    container='{"command": ["python", "train.py"]}',
    run_file="{}",
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
def place(tmp_path: Path) -> BroughtOptions:
    brought.write(tmp_path / "brought", BROUGHT, credentials())
    return BroughtOptions(folder=tmp_path / "brought", name="house", state=tmp_path / "state")


def machine(place: BroughtOptions) -> Joined:
    return machine_of(place, time.time())[1]


def test_a_machine_has_the_first_slot_or_those_that_were_said_and_keeps_them(
    place: BroughtOptions,
) -> None:
    assert machine(place).slots == ("eu-west-0",)
    said = replace(place, first_slot=1, learners=2)
    folder, found, had = machine_of(said, time.time())
    assert (folder, found.slots, had) == (place.state, ("eu-west-1", "eu-west-2"), None)
    assert (found.endpoints, found.container) == (BROUGHT.endpoints, BROUGHT.container)
    joined_folder.write(folder, found)
    assert machine_of(place, time.time())[1:] == (found, found)
    assert machine(replace(place, learners=1)).slots == ("eu-west-0",)
    default = machine_of(replace(place, state=None), time.time())[0]
    assert default.name == f"bytes-{OWNER.uid}-house"


def test_a_machine_with_certificates_of_its_own_has_their_slots(place: BroughtOptions) -> None:
    brought.write(place.folder, replace(BROUGHT, slots=("eu-west-2",)), credentials())
    assert machine(place).slots == ("eu-west-2",)
    for said in (replace(place, learners=2), replace(place, first_slot=0)):
        with pytest.raises(SpecError, match="is given, and the credentials are for eu-west-2"):
            machine(said)


def test_a_host_of_several_knows_where_it_meets_the_others(place: BroughtOptions) -> None:
    brought.write(place.folder, replace(BROUGHT, hosts=3, hosts_min=2), credentials())
    head = machine(replace(place, host=0))
    assert (head.host, head.hosts, head.hosts_min) == (0, 3, 2)
    assert hosts.place_of(head) == "127.0.0.1:29400"  # as it reaches the shards
    second = replace(place, host=1)
    with pytest.raises(SpecError, match="--rendezvous: is not given, and host 1 does not know"):
        machine(second)
    folder, found, _ = machine_of(replace(second, rendezvous="10.0.0.9:29400"), time.time())
    assert hosts.place_of(found) == "10.0.0.9:29400"
    (launcher,) = planned(folder, found, Wanted(command=["train.py"]), hosts.place_of(found))
    assert launcher.env["PET_RDZV_ENDPOINT"] == "10.0.0.9:29400"
    assert (launcher.env["PET_NNODES"], launcher.env["ATOLL_HOST"]) == ("2:3", "1")
    joined_folder.write(folder, found)
    assert machine(place) == found  # started again
    training = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_TRAINING)
    check_slots(found, None, status(training))  # by the hosts that are there
    for wrong, words in (({"host": 3}, "is 3, and its"), ({"learners": 2}, "a host is of one")):
        with pytest.raises(SpecError, match=words):
            machine(replace(second, rendezvous="a:1", **wrong))  # type: ignore[arg-type]


def test_learners_read_files_of_the_state_folder_alone(place: BroughtOptions) -> None:
    folder = machine_of(place, time.time())[0]
    keep(folder, place)
    assert (folder / RUN_FILE).read_text() == "{}"
    assert Credentials.read(folder / "tls") == Credentials.read(place.folder)
    for file in [*place.folder.iterdir(), *(folder / "tls").rglob("tls.key")]:
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learners": 4}, "--learners: eu-west-0, .*eu-west-3 wanted, and .* has 3 learners"),
        ({"first_slot": 3}, "--learners: eu-west-3 wanted, and region eu-west has 3 learners"),
        ({"folder": Path("/nowhere")}, "--credentials: /nowhere/job.json cannot be read"),
    ],
)
def test_what_was_not_brought_is_refused(
    place: BroughtOptions, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        machine_of(replace(place, **change), time.time())


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
    place: BroughtOptions, changed: Credentials, words: str
) -> None:
    brought.write(place.folder, BROUGHT, changed)
    with pytest.raises(SpecError, match=words):
        machine(place)


def test_a_state_folder_is_of_one_machine_of_one_job(place: BroughtOptions) -> None:
    assert place.state is not None
    own = machine(place)
    options = JoinOptions(server="127.0.0.1:1", name="house", state=place.state)
    joined_folder.write(place.state, own)
    with pytest.raises(SpecError, match="is of a machine with credentials of a cluster"):
        enter(options)
    for other, words in (
        (replace(own, digest="0" * 64), "is of a machine of `atoll serve`"),
        (replace(own, job="other"), "is of a machine of job other, region eu-west"),
        (replace(own, region="us"), "is of a machine of job bytes, region us"),
    ):
        joined_folder.write(place.state, other)
        with pytest.raises(SpecError, match=words):
            machine(place)


def status(*slots: pb.SlotStatus, **more: Any) -> pb.StatusReply:
    return pb.StatusReply(state=pb.SHARD_SERVING, slots=slots, **more)


def test_a_slot_that_another_has_is_not_taken_unsaid(place: BroughtOptions) -> None:
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


def test_the_manifest_of_the_syncers_cluster_counts_as_it_is_now(place: BroughtOptions) -> None:
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
        ((serving, serving), pb.JOB_TRAINING),
        ((serving, None), pb.JOB_STATE_UNSPECIFIED),
        ((final, serving), pb.JOB_TRAINING),
        ((final, final), pb.JOB_FINAL),
        ((reply(pb.SHARD_SERVING, pb.INTENT_SUSPEND), None), pb.JOB_SUSPENDED),
        ((reply(pb.SHARD_COMPLETE, pb.INTENT_SUSPEND), None), pb.JOB_COMPLETE),
    ):
        assert told(replies) == pb.WatchReply(state=state, tick=7, length=60)
    failed = told([reply(pb.SHARD_SERVING, pb.INTENT_FAIL, why="QuorumLost")])
    assert (failed.state, failed.why) == (pb.JOB_FAILED, "QuorumLost")


class Shard:
    """A real server with mutual TLS that answers Status alone."""

    def __init__(self, folder: Path) -> None:
        own = leaf(ISSUERS, identity(Role.SHARD), time.time())
        for name, data in (("tls.crt", own.certificate), ("tls.key", own.key)):
            (folder / name).write_bytes(data)
        (folder / "ca.crt").write_bytes(own.authority)
        (port,) = free_ports(1)
        self.place, self.refusal = f"127.0.0.1:{port}", ""
        self.server = grpc.server(futures.ThreadPoolExecutor(1), options=server_options())
        add_handlers(Service.SYNCER, self, self.server)
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
    found = Shard(tmp_path / "shard")
    found.server.start()
    yield found
    found.server.stop(None).wait()


@pytest.fixture
def watcher(place: BroughtOptions, shard: Shard) -> ShardWatcher:
    folder, found, _ = machine_of(place, time.time())
    keep(folder, place)
    own, said = replace(found, endpoints=(shard.place,)), list[str]()
    return ShardWatcher(folder, own, said.append, source=place.folder)


def said_by(watcher: ShardWatcher) -> list[str]:
    lines: list[str] = watcher.say.__self__  # type: ignore[attr-defined]
    return lines


def test_it_asks_the_shards_with_its_learners_certificate(watcher: ShardWatcher) -> None:
    watcher.look()
    assert watcher.reply == pb.WatchReply(state=pb.JOB_TRAINING, tick=9, length=60)
    assert not watcher.fails
    assert said_by(watcher) == []


def test_new_credentials_are_taken_and_those_of_another_run_are_not(watcher: ShardWatcher) -> None:
    watcher.look()
    new = credentials()
    brought.write(watcher.source, BROUGHT, new)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (line,) = said_by(watcher)
    assert line.endswith("are new: learners take them as they run")
    assert watcher.reply.tick == 9  # asked again, on a connection with the new ones
    again = JobIdentity(namespace="team", job="bytes", uid="0b-2")
    brought.write(watcher.source, BROUGHT, credentials(again))
    for _ in range(3):
        watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (line,) = said_by(watcher)[1:]
    assert "is that of UID 0b-2, and UID 0b-1 is needed" in line
    assert line.endswith("; the former credentials stay")


def test_those_of_one_machine_are_renewed_by_its_own(watcher: ShardWatcher) -> None:
    one, two = (credentials(machine=each) for each in ("one", "two"))
    joined_folder.keep_credentials(watcher.folder, one)
    brought.write(watcher.source, BROUGHT, two)
    watcher.look()
    watcher.look()
    (line,) = said_by(watcher)
    assert "tls.crt: is that of machine two, and machine one is needed" in line
    new = credentials(machine="one", age=21)
    brought.write(watcher.source, BROUGHT, new)
    watcher.look()
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    how = f"--region eu-west --machine one --files {watcher.source}"
    assert said_by(watcher)[-1].endswith(how)


def test_files_that_are_being_copied_are_no_fault(watcher: ShardWatcher) -> None:
    watcher.look()
    had, new = Credentials.read(watcher.source), credentials()
    (watcher.source / "tls.key").write_bytes(new.key)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == had
    assert said_by(watcher) == []
    (watcher.source / "tls.crt").write_bytes(new.certificate)
    watcher.look()
    assert Credentials.read(watcher.folder / "tls") == new
    (watcher.source / "tls.key").unlink()
    for _ in range(3):
        watcher.look()
    (line,) = said_by(watcher)[1:]
    assert "tls.key: is missing" in line
    assert watcher.reply.tick == 9


def test_a_revoked_region_trains_on_until_new_credentials_come(
    watcher: ShardWatcher, shard: Shard
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


def test_why_nothing_answers_is_said(watcher: ShardWatcher, shard: Shard) -> None:
    shard.server.stop(None).wait()
    watcher.look()
    assert said_by(watcher)[0].startswith(f"shard 0 at {shard.place} does not answer; learners")
    assert watcher.fails


def test_another_authority_is_named(watcher: ShardWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "CALL_SECONDS_MAX", 2.0)
    foreign = leaf(authorities(time.time()), identity(region=REGION), time.time())
    joined_folder.keep_credentials(watcher.folder, foreign)
    brought.write(watcher.source, BROUGHT, foreign)
    watcher.look()
    assert "refuses: its certificate, of" in said_by(watcher)[0]
    assert "was not issued by an authority in this process's ca.crt" in said_by(watcher)[0]


def test_new_ones_are_asked_for_once_when_two_thirds_are_over(watcher: ShardWatcher) -> None:
    now = time.time()
    for days, lines in ((19, 0), (21, 1), (22, 1)):
        watcher.clock = lambda days=days: now + days * DAY  # type: ignore[misc]
        watcher.look()
        assert len(said_by(watcher)) == lines
    how = f"atoll credentials bytes -n team --region eu-west --files {watcher.source}"
    assert said_by(watcher)[0].endswith(f"bring new ones with {how}")


def test_the_command_takes_one_place_and_its_script(
    place: BroughtOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def joins(*given: Any) -> int:
        found.append(given[:2])
        return 0

    monkeypatch.setattr(joining, "join_with_credentials", joins)
    own = ["join", "--credentials", str(place.folder), "--name", "house"]

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
