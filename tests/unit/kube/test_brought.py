"""Credentials that a person brings into a cluster without the syncer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.authority import job_authority
from atoll_operator.authority.job_authority import Authorities
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.effects.secrets import HURRY_SECONDS
from atoll_operator.kube.names import TLS_VOLUME, Annotation, authority_name, credentials_name
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import Certificates, SecretSeen, ShardRefusal
from atoll_operator.kube.plan.certificates import region_secret
from atoll_operator.kube.plan.certificates.issuing import work_of_region_secrets
from atoll_operator.kube.plan.owner import JobOwner, generations, machines
from atoll_operator.kube.plan.workloads import configs
from atoll_operator.machines import brought
from atoll_protos.job.expected import Expected, ListedMachine
from atoll_protos.network.credentials import Credentials
from atoll_protos.network.identity import JobIdentity, Role
from unit.certificate_values import DAY, NOW, OWNER, authorities, identity
from unit.kube.cluster_values import MANIFEST, SETTINGS, job, reply
from unit.kube.person_side import COLLECTIONS, Cluster
from unit.kube.world import KEY, World

NAME = "bytes-credentials-eu-west"
ISSUERS = authorities()


def brought_secret(
    issuers: Authorities = ISSUERS, owner: JobIdentity = OWNER, region: str = "eu-west"
) -> dict[str, Any]:
    return region_secret.secret(issuers, owner, region, NAME, NOW, 30 * DAY)


def judged(raw: dict[str, Any] | None, now: float = NOW) -> region_secret.JudgedSecret:
    return region_secret.judged(raw, "bytes", "eu-west", now)


def test_a_secret_holds_a_leaf_for_learners_and_one_for_the_operator_and_no_authoritys_key() -> (
    None
):
    raw = brought_secret()
    assert set(raw["data"]) == {"tls.crt", "tls.key", "ca.crt", "operator.crt", "operator.key"}
    assert raw["type"] == "kubernetes.io/tls"
    assert (raw["metadata"]["name"], raw["metadata"]["namespace"]) == (NAME, "team")
    found = judged(raw)
    assert found.fault == ""
    assert found.operator is not None
    assert found.operator.check(NOW) == identity(Role.OPERATOR, "eu-west")
    assert found.due_at == pytest.approx(NOW + 20 * DAY, abs=2)


def with_entry(**entries: str) -> dict[str, Any]:
    raw = brought_secret()
    changed = {name.replace("_", "."): value for name, value in entries.items()}
    return {**raw, "data": {**raw["data"], **changed}}


OURS = brought_secret()["data"]
FORMER = brought_secret(owner=JobIdentity(namespace="team", job="bytes", uid="former"))["data"]


@pytest.mark.parametrize(
    ("raw", "now", "words"),
    [  # what else may be wrong with a leaf is in tests/unit/contract/test_credentials.py
        (None, NOW, "it is not there"),
        (brought_secret(region="us-east"), NOW, "region us-east, and region eu-west is needed"),
        (brought_secret(), NOW + 31 * DAY, "tls.crt expired"),
        (with_entry(operator_crt=""), NOW, "operator.crt"),
        (with_entry(operator_crt="no base64!"), NOW, "operator.crt"),
        (
            with_entry(operator_crt=OURS["tls.crt"], operator_key=OURS["tls.key"]),
            NOW,
            "operator.",
        ),
        (
            with_entry(operator_crt=FORMER["operator.crt"], operator_key=FORMER["operator.key"]),
            NOW,
            "UID former",
        ),
    ],
)
def test_what_is_wrong_with_a_secret_is_named(
    raw: dict[str, Any] | None, now: float, words: str
) -> None:
    found = judged(raw, now)
    assert words in found.fault
    assert found.operator is None


# ---------------------------------------------------------------- what a pass makes of it


def decided(*refusals: str, now: float = NOW, **seen: Any) -> Any:
    name = "tiny-credentials-eu-west"
    known = Certificates(secrets={name: SecretSeen(name=name, **seen)})
    return work_of_region_secrets(job(), "demo", lambda r: r == "eu-west", known, refusals, now)


COMMAND = "atoll credentials tiny -n demo --region eu-west > eu-west.yaml"


def test_a_secret_that_is_missing_is_asked_for_with_the_command() -> None:
    found = decided()
    assert found.why == "CredentialsMissing"
    assert found.missing[0].startswith(
        f"the Secret tiny-credentials-eu-west is not there: run {COMMAND}"
    )
    assert not found.acts  # this cluster can make none


def test_a_secret_that_is_wrong_or_that_the_shards_do_not_take_is_refused() -> None:
    wrong = decided(uid="u", reason="tls.crt expired at 1")
    said = f"the Secret tiny-credentials-eu-west: tls.crt expired at 1; run {COMMAND}"
    assert (wrong.why, wrong.missing[0][: len(said)]) == ("CredentialsRefused", said)
    former = decided("shard 0: it has credentials of another run", uid="u")
    assert former.why == "CredentialsRefused"
    assert former.missing[0].startswith("shard 0: it has credentials of another run; for other")
    assert decided(uid="u").missing == ()


def test_a_secret_is_asked_for_again_before_it_expires() -> None:
    assert decided(uid="u", due_at=NOW + 1).expiring == ()
    (said,) = decided(uid="u", due_at=NOW - 1).expiring
    assert said.startswith("the certificates of the Secret tiny-credentials-eu-west expire: run")
    assert COMMAND in said


# ---------------------------------------------------------------- passes in that cluster


SYNCER = {"shards": 1, "endpoints": ["lb:7700"], "tls": {"mode": "Required"}}
EU_WEST = replace(SETTINGS, regions=("eu-west",))
TINY = JobIdentity(namespace="demo", job="tiny", uid="uid-at-home")
SECRET = path("Secret", "demo", "tiny-credentials-eu-west")
STILL = 1_800_000_000.0  # as `still` says


def bring(world: World, region: str = "eu-west") -> None:
    issuers = authorities(STILL, TINY)
    raw = region_secret.secret(issuers, TINY, region, "tiny-credentials-eu-west", STILL, 30 * DAY)
    raw["metadata"] |= {"uid": "brought", "resourceVersion": "1"}
    world.server.children[SECRET] = raw
    world.reconciler.memories[KEY].certificates.next_at = 0.0


@pytest.mark.usefixtures("still")
def test_nothing_is_made_and_nobody_asked_before_the_credentials_are_there() -> None:
    world = World(("syncer", SYNCER), settings=EU_WEST)
    world.run()
    assert world.server.children == {}
    assert world.said("Accepted")["reason"] == "CredentialsMissing"
    assert world.shards.own == {}
    bring(world, region="us-east")
    world.run()
    assert world.said("Accepted")["reason"] == "CredentialsRefused"
    assert "region us-east, and region eu-west is needed" in world.said("Accepted")["message"]
    assert list(world.server.children) == [SECRET]
    bring(world)
    world.run()
    world.run()
    assert world.said("Accepted")["reason"] == "Valid"
    assert world.shards.own["eu-west"].check(STILL).role is Role.OPERATOR
    template = world.server.children[path("StatefulSet", "demo", "tiny-eu-west")]["spec"][
        "template"
    ]
    (volume,) = [each for each in template["spec"]["volumes"] if each["name"] == TLS_VOLUME]
    assert volume["secret"]["secretName"] == "tiny-credentials-eu-west"
    mounted = {each["key"] for each in volume["secret"]["items"]}
    assert mounted == {"tls.crt", "tls.key", "ca.crt"}  # and not the operator's
    assert not any("tiny-ca" in where for where in world.server.children)


@pytest.mark.usefixtures("still")
def test_credentials_that_are_taken_away_end_nothing_that_runs() -> None:
    world = World(("syncer", SYNCER), settings=EU_WEST)
    world.run()
    bring(world)
    world.shards.replies = [reply(us_east_0="Training")]
    world.run()
    world.run()
    del world.server.children[SECRET]
    world.reconciler.memories[KEY].certificates.next_at = 0.0
    world.run()
    assert world.said("Degraded")["reason"] == "CredentialsMissing"
    assert [world.condition(each) for each in ("Accepted", "Ready")] == ["True", "True"]
    assert world.server.children[path("StatefulSet", "demo", "tiny-eu-west")]["spec"]["replicas"]


@pytest.mark.usefixtures("still")
def test_credentials_that_no_shard_takes_are_read_again_soon() -> None:
    world = World(("syncer", SYNCER), settings=EU_WEST)
    world.run()
    bring(world)
    world.shards.refused = {0: ShardRefusal(text="it has credentials of another run")}
    world.run()
    assert world.said("Accepted")["reason"] == "CredentialsRefused"
    assert "it has credentials of another run" in world.said("Accepted")["message"]
    memory = world.reconciler.memories[KEY].certificates
    before, at_rest = world.shards.own["eu-west"], memory.next_at
    bring(world)
    memory.next_at = at_rest  # in minutes
    world.run()
    assert world.shards.own["eu-west"] == before
    memory.read_at -= HURRY_SECONDS
    world.run()
    assert world.shards.own["eu-west"] != before


@pytest.mark.usefixtures("still")
def test_in_plain_text_no_credentials_are_asked_for() -> None:
    syncer = {"shards": 1, "endpoints": ["lb:7700"], "tls": {"mode": "Disabled"}}
    world = World(("syncer", syncer), settings=EU_WEST)
    world.run()
    assert world.said("Accepted")["reason"] == "Valid"
    assert world.shards.own is None


@pytest.mark.usefixtures("still")
def test_of_a_job_that_is_over_the_shards_are_asked_a_while_and_then_no_more() -> None:
    syncer = {"shards": 1, "endpoints": ["lb:7700"], "tls": {"mode": "Disabled"}}
    complete = {"type": "Complete", "status": "True", "reason": "Trained", "message": ""}
    for seconds, asked in ((5, "lb:7700"), (121, "")):
        world = World(("syncer", syncer), settings=EU_WEST)
        assert world.server.job is not None
        world.server.job["status"] = {
            "conditions": [complete], "completionTime": rfc3339(STILL - seconds),
        }  # fmt: skip
        world.run()
        assert world.shards.followed[KEY] == {0: asked}


# ---------------------------------------------------------------- the command


@pytest.fixture
def stored(cluster: Cluster) -> dict[str, Any]:
    """The job in the cluster of its syncer, where the Secret of its authority is too."""
    raw = yaml.safe_load(MANIFEST)
    raw["metadata"] |= {"name": "bytes", "uid": OWNER.uid, "resourceVersion": "1"}
    raw["spec"]["syncer"] = {"shards": 1, "tls": {"mode": "Required"}}
    cluster.put("Secret", authority_name("bytes"), {"data": ISSUERS.to_files()})
    return cluster.put("Job", "bytes", raw)


def typed(*more: str) -> Any:
    words = ["credentials", "bytes", "--context", "here", *more]
    return CliRunner().invoke(cli.app, words)


@pytest.mark.usefixtures("stored")
def test_the_command_prints_a_secret_that_is_taken_where_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    done = typed("--region", "eu-west", "--days", "3")
    assert done.exit_code == 0, done.output
    printed = yaml.safe_load(done.output)
    assert printed["metadata"]["name"] == credentials_name("bytes", "eu-west")
    found = judged(printed)
    assert found.fault == ""
    assert judged(printed, NOW + 3.1 * DAY).fault
    assert found.operator is not None
    assert isinstance(found.operator, Credentials)
    assert found.operator.authority == ISSUERS.bundle
    assert job_authority.due_at(found.operator.certificate) == pytest.approx(NOW + 2 * DAY, abs=2)


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        ({"mode": "Disabled"}, "need no credentials"),
        ({"mode": "Required", "issuerRef": {"name": "ca"}}, "cert-manager issues the certificates"),
    ],
)
def test_where_nothing_can_be_printed_the_command_says_why(
    stored: dict[str, Any], tls: dict[str, Any], words: str
) -> None:
    stored["spec"]["syncer"]["tls"] = tls
    done = typed("--region", "eu-west")
    assert words in str(done.exception)
    assert not done.output


def test_a_region_a_job_or_an_authority_that_is_not_there_is_named(
    cluster: Cluster, stored: dict[str, Any]
) -> None:
    assert "give one of eu-west" in str(typed("--region", "eu").exception)
    home = str(typed("--region", "us-east").exception)
    assert "us-east is where the syncer runs" in home
    assert home.endswith("give one of eu-west")
    del cluster.objects[f"{COLLECTIONS['Secret']}/bytes-ca"]
    assert "there is no such job in the namespace team" in str(
        typed("--region", "eu-west").exception
    )
    cluster.refused["/secrets/bytes-ca"] = (403, "secrets is forbidden: you cannot get")
    said = str(typed("--region", "eu-west").exception)
    assert said.startswith("bytes: the cluster refuses: secrets is forbidden: you cannot get; ask")
    stored["spec"]["regions"] = [{"name": "us-east", "learners": 2}]
    assert "no region in another cluster" in str(typed("--region", "us-east").exception)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("days", ["0", "-1", "60.5", "10000", "nan", "inf"])
def test_days_that_are_not_possible_are_refused_with_those_that_are(days: str) -> None:
    done = typed("--region", "eu-west", "--days", days)
    assert "--days" in str(done.exception)
    assert "give 0.001 (86 seconds) to 60" in str(done.exception)
    assert not done.output


@pytest.mark.usefixtures("stored")
def test_what_is_printed_after_a_revocation_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    for count in (1, 2):
        done = typed("--revoke", "eu-west")
        assert done.exit_code == 0, done.output
        assert "atoll credentials bytes -n team --region eu-west prints valid ones" in done.stderr
        printed = yaml.safe_load(typed("--region", "eu-west").output)
        operator = judged(printed).operator
        assert operator is not None
        assert operator.identity.generation == count
    assert typed("--revoke", "us-east").exit_code == 0  # the operator renews that one
    printed = yaml.safe_load(typed("--region", "eu-west").output)
    operator = judged(printed).operator
    assert operator is not None
    assert operator.identity.generation == 2


@pytest.mark.usefixtures("stored")
def test_a_revocation_needs_a_region_of_the_job() -> None:
    said = str(typed("--revoke", "eu").exception)
    assert "give one of us-east, eu-west; regions that a job has not any more are shut out" in said
    assert "exactly one is needed" in str(typed().exception)
    assert "exactly one is needed" in str(typed("--region", "a", "--revoke", "b").exception)


# ---------------------------------------------------------------- for a machine


def test_files_for_a_machine_are_those_of_learners_and_what_they_need(
    cluster: Cluster, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    words = ("--region", "eu-west", "--files", str(tmp_path / "house"))
    refused = str(typed(*words).exception)
    assert refused.startswith("spec.syncer.endpoints: is empty, and the job shows no addresses")
    shown = {"shards": 1, "ready": 1, "epochs": [1], "endpoints": ["10.0.0.1:30700"]}
    stored["status"] = {"syncer": shown}
    done = typed(*words)
    assert done.exit_code == 0, done.output
    assert not done.stdout
    folder = tmp_path / "house"
    assert f"atoll join --credentials {folder} -- SCRIPT" in done.stderr
    names = {each.name for each in folder.iterdir()}
    assert names == {"job.json", "tls.crt", "tls.key", "ca.crt"}  # none of the region's operator
    assert all(each.stat().st_mode & 0o077 == 0 for each in (folder, *folder.iterdir()))
    first = Credentials.read(folder)
    assert first.check(NOW) == identity(Role.LEARNER, "eu-west")
    found = brought.read(folder)
    assert (found.job, found.region, found.learners) == ("bytes", "eu-west", 1)
    assert found.endpoints == ("10.0.0.1:30700",)
    whole = from_object(stored, stored=True)
    assert found.run_file == run_file(whole).to_json()
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]  # which learners elsewhere dial
    assert typed(*words).exit_code == 0
    assert brought.read(folder).endpoints == ("gate:7700",)
    assert Credentials.read(folder) != first


def test_machines_hear_how_many_of_them_are_one_learner_and_are_shut_out_together(
    stored: dict[str, Any], tmp_path: Path
) -> None:
    stored["spec"] |= {"learner": {"hosts": 3, "hostsMin": 2}}
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    words = ("--region", "eu-west", "--files", str(tmp_path / "house"))
    assert typed(*words).exit_code == 0
    found = brought.read(tmp_path / "house")
    assert (found.hosts, found.hosts_min) == (3, 2)
    refused = str(typed(*words, "--machine", "one").exception)
    assert refused.startswith("--machine: is for learners of one machine each")


def test_a_folder_that_cannot_be_written_is_named(stored: dict[str, Any], tmp_path: Path) -> None:
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    (tmp_path / "file").write_text("")
    refused = str(typed("--region", "eu-west", "--files", str(tmp_path / "file/x")).exception)
    assert refused == f"{tmp_path}/file: File exists; give a writable folder"


def test_each_machine_of_a_region_may_have_certificates_and_slots_of_its_own(
    stored: dict[str, Any], tmp_path: Path
) -> None:
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    stored["spec"]["regions"][1]["learners"] = 3

    def made(name: str, *more: str) -> tuple[str, tuple[str, ...]]:
        """The machine that its certificate names, and its slots."""
        words = ("--region", "eu-west", "--machine", name, "--files", str(tmp_path / name), *more)
        done = typed(*words)
        assert done.exit_code == 0, done.exception
        found = Credentials.read(tmp_path / name).identity
        assert (found.role, found.region) == (Role.LEARNER, "eu-west")
        return found.machine, brought.read(tmp_path / name).slots

    assert made("one", "--learners", "2") == ("one", ("eu-west-0", "eu-west-1"))
    assert made("two") == ("two", ("eu-west-2",))
    version = stored["metadata"]["annotations"][Annotation.MACHINES]
    assert made("one") == ("one", ("eu-west-0", "eu-west-1"))  # renewed, and the job is as it was
    assert stored["metadata"]["annotations"][Annotation.MACHINES] == version
    three = ("--region", "eu-west", "--machine", "three", "--files", str(tmp_path / "three"))
    refused = str(typed(*three).exception)
    assert "1 wanted, and machines have all but 0 of region eu-west" in refused
    assert refused.endswith("atoll edit bytes --learners eu-west=4")
    done = typed("--revoke", "eu-west", "--machine", "one")
    assert done.stderr.startswith("machine one is shut out when the kubelet has shown them that")
    listed = configs.slots_map(JobOwner.of(stored, "bytes"), job(), 1)["data"]["slots.json"]
    two = ListedMachine(name="two", slots=("eu-west-2",))
    assert Expected.from_json(listed).machines == (two,)
    again = ("--region", "eu-west", "--machine", "one", "--files", str(tmp_path / "one"))
    assert "one was shut out; give another name" in str(typed(*again).exception)
    assert made("three") == ("three", ("eu-west-0",))
    assert not (generations(stored["metadata"]["annotations"]))  # the region's stay


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--region", "eu-west", "--machine", "m"], "--machine: is for a machine without"),
        (
            ["--region", "eu-west", "--files", "x", "--learners", "2"],
            "is for --machine",
        ),
        (["--region", "eu-west", "--files", "x", "--machine", "a/b"], "'a/b' is no name"),
        (["--revoke", "eu-west", "--machine", "m"], "--machine: m is none of region eu-west"),
        (["--revoke", "us-east", "--machine", "m"], "--machine: m is none of region us-east"),
    ],
)
def test_a_machine_that_cannot_be_named_is_refused(words: list[str], said: str) -> None:
    assert said in str(typed(*words).exception)


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", '{"one": "eu-west-0"}', '{"one": [1]}', '{"one": null}', 7]
)
def test_a_spoilt_annotation_of_machines_counts_as_none(spoilt: object) -> None:
    assert machines({Annotation.MACHINES: spoilt}) == {}
