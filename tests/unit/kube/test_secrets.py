"""The Secrets with a job's certificates: made before its pods, renewed, and read seldom."""

import base64
import copy
import time
from typing import Any

import pytest

from atoll_operator.authority.job_authority import Authorities, make_authorities
from atoll_operator.kube.edges.api import ApiError, path
from atoll_operator.kube.effects import secrets
from atoll_operator.kube.names import TLS_FOLDER, TLS_VOLUME, Annotation, generations
from atoll_protos.environment import Env
from atoll_protos.job.run_file import Expected, Limit
from atoll_protos.names import ALIVE
from atoll_protos.network.credentials import Credentials, JobIdentity, Role
from unit.kube.world import KEY, World

pytestmark = pytest.mark.usefixtures("still")

NOW = 1_800_000_000.0  # as `still` says
DAY = 86_400.0
AUTHORITY = path("Secret", "demo", "tiny-ca")
SHARD = path("Secret", "demo", "tiny-tls-shard")
LEARNER = path("Secret", "demo", "tiny-tls-learner-us-east")
LEARNERS = path("StatefulSet", "demo", "tiny-us-east")
TLS = ("syncer", {"shards": 1, "tls": {"mode": "Required"}})
NAMES = {
    "tiny-ca", "tiny-tls-shard", "tiny-tls-evaluator", "tiny-tls-learner-us-east",
    "tiny-tls-learner-eu-west",
}  # fmt: skip


def files(world: World, where: str) -> dict[str, bytes]:
    data = world.server.children[where]["data"]
    return {name: base64.b64decode(value) for name, value in data.items()}


def credentials(world: World, where: str) -> Credentials:
    found = files(world, where)
    return Credentials(found["tls.crt"], found["tls.key"], found["ca.crt"])


def made(world: World) -> set[str]:
    return {where.rpartition("/")[2] for where in world.server.children if "/secrets/" in where}


def read_by(
    world: World, monkeypatch: pytest.MonkeyPatch, error: ApiError | None = None
) -> list[str]:
    """Names of the Secrets that are read from now on, which may fail."""
    found: list[str] = []
    get = world.server.get

    async def counted(where: str) -> Any:
        if "/secrets/" in where:
            found.append(where.rpartition("/")[2])
            if error is not None:
                raise error
        return await get(where)

    monkeypatch.setattr(world.server, "get", counted)
    return found


def again(world: World) -> list[str]:
    """A pass when the time of the next reading has come; what it wrote."""
    world.memory.certificates.next_at = 0.0
    return world.run()


def at(monkeypatch: pytest.MonkeyPatch, world: World, days: float) -> list[str]:
    """A pass so many days later; what it wrote."""
    monkeypatch.setattr("time.time", lambda: NOW + days * DAY)
    return again(world)


def sealed(*changes: tuple[str, Any]) -> World:
    """A job that talks over TLS."""
    return World(TLS, *changes)


def begun(*changes: tuple[str, Any]) -> World:
    world = sealed(*changes)
    world.runs()
    return world


def test_certificates_of_every_role_and_region_are_there_before_the_pods_that_mount_them() -> None:
    world = sealed()
    wrote = world.run()
    assert made(world) == NAMES
    workloads = [n for n, each in enumerate(wrote) if each.startswith(("apply St", "apply D"))]
    assert max(wrote.index(f"apply Secret {name}") for name in NAMES) < min(workloads)
    who = credentials(world, LEARNER).check(NOW)
    found = (who.role, who.region, who.namespace, who.job, who.uid)
    assert found == (Role.LEARNER, "us-east", "demo", "tiny", "job-uid")
    (owner,) = world.server.children[LEARNER]["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("job-uid", True)
    world.run()
    world.job["spec"]["regions"].append({"name": "ap-south", "learners": 1})
    wrote = world.run()
    leaf = wrote.index("apply Secret tiny-tls-learner-ap-south")
    assert leaf < wrote.index("apply StatefulSet tiny-ap-south")


def test_pods_mount_the_certificate_of_their_role_and_sidecars_do_not() -> None:
    sidecar = {"name": "logs", "image": "logs:1"}
    world = begun(("learner", {"template": {"spec": {"containers": [{}, sidecar]}}}))
    template = world.live("StatefulSet", "tiny-us-east")["spec"]["template"]["spec"]
    (volume,) = [each for each in template["volumes"] if each["name"] == TLS_VOLUME]
    assert volume["secret"]["secretName"] == "tiny-tls-learner-us-east"
    assert volume["secret"]["defaultMode"] == 0o440  # of root and the pod's fsGroup
    assert template["securityContext"]["fsGroup"] == template["securityContext"]["runAsUser"]
    own, other = template["containers"]
    assert {"name": TLS_VOLUME, "mountPath": TLS_FOLDER} in own["volumeMounts"]
    assert {"name": Env.TLS_DIR, "value": TLS_FOLDER} in own["env"]
    assert "volumeMounts" not in other
    assert "env" not in other


@pytest.mark.parametrize("mode", ["Required", "Disabled"])
def test_the_kubelet_probes_a_shard_on_its_port_of_plain_text(mode: str) -> None:
    world = begun(("syncer", {"shards": 1, "tls": {"mode": mode}}))
    shard = world.live("Deployment", "tiny-syncer-0")
    container = shard["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["grpc"] == {"port": 7701}
    lives = {"port": 7701, "service": ALIVE}  # also while it waits for its turn, or reads its store
    assert container["livenessProbe"]["grpc"] == container["startupProbe"]["grpc"] == lives
    env = {each["name"]: each.get("value") for each in container["env"]}
    sealed = mode == "Required"
    assert env[Env.HEALTH_PORT] == "7701"
    assert bool(made(world)) == (world.shards.own is not None) == sealed


def test_the_operator_asks_with_a_certificate_of_its_own_for_each_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = begun()
    assert set(world.shards.own) == {"us-east", "eu-west"}
    for region, own in world.shards.own.items():
        who = own.check(NOW)
        assert (who.role, who.region) == (Role.OPERATOR, region)
    before, found = world.shards.own, read_by(world, monkeypatch)
    assert world.runs(5) == found == []  # a pass at rest reads no Secret
    assert world.shards.own == before  # kept as long as it is good


def test_a_secret_that_is_deleted_or_changed_is_made_again_at_the_next_reading() -> None:
    world = begun()
    del world.server.children[SHARD]
    world.server.children[LEARNER]["data"]["tls.key"] = base64.b64encode(b"mine").decode()
    assert again(world) == ["apply Secret tiny-tls-shard", "apply Secret tiny-tls-learner-us-east"]
    assert credentials(world, SHARD).check(NOW).role is Role.SHARD
    assert credentials(world, LEARNER).fault(NOW) is None
    world.run()
    assert world.run() == []


def test_a_pod_that_cannot_start_brings_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    del world.server.children[LEARNER]
    world.server.add_pod("tiny-us-east-0", "learner", "n1")
    pod = world.live("Pod", "tiny-us-east-0")
    pod["metadata"]["creationTimestamp"] = "2027-01-15T07:00:00Z"
    pod["status"] = {"phase": "Pending"}
    world.memory.certificates.read_at -= secrets.HURRY_SECONDS
    assert "apply Secret tiny-tls-learner-us-east" in world.run()
    world.run()
    found = read_by(world, monkeypatch)
    world.run()
    assert found == []


def test_leaves_are_renewed_and_no_workload_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    before = credentials(world, SHARD)
    assert at(monkeypatch, world, 19.9) == []
    wrote = at(monkeypatch, world, 20.1)
    assert {each for each in wrote if each != "status"} == {
        f"apply Secret {name}" for name in NAMES - {"tiny-ca"}
    }
    after = credentials(world, SHARD)
    assert after.not_after > before.not_after
    assert after.authority == before.authority


def test_a_new_authority_is_written_down_before_leaves_that_believe_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What each step of a change is: `test_certificates`."""
    world = begun()
    wrote = [each for each in at(monkeypatch, world, 241) if "Secret" in each]
    assert wrote[0] == "apply Secret tiny-ca"
    both = Authorities.from_files(files(world, AUTHORITY))
    assert both.successor is not None
    for where in (SHARD, LEARNER):
        assert credentials(world, where).authority == both.bundle
        assert credentials(world, where).fault(NOW + 241 * DAY) is None


def test_of_a_lost_authority_the_leaves_in_use_are_still_believed() -> None:
    world = begun()
    old = credentials(world, SHARD).authority
    del world.server.children[AUTHORITY]
    again(world)
    new = credentials(world, SHARD).authority
    assert new != old
    assert old in new


def test_no_key_is_in_what_is_remembered_said_or_logged(capsys: pytest.CaptureFixture[str]) -> None:
    world = begun()
    memory = world.memory
    keys = [files(world, where)["tls.key"] for where in (AUTHORITY, SHARD, LEARNER)]
    keys += [each.key for each in memory.certificates.own.values()]
    said = capsys.readouterr()
    texts = [repr(memory), str(world.job), said.out, said.err, str(world.server.cache)]
    for key in keys:
        for text in texts:
            assert key.decode().splitlines()[1] not in text
            assert base64.b64encode(key).decode() not in text


def test_a_secret_of_somebody_else_is_left_alone_and_named() -> None:
    world = sealed()
    mine = {"metadata": {"name": "tiny-ca", "uid": "u", "resourceVersion": "1"}, "data": {}}
    world.server.children[AUTHORITY] = copy.deepcopy(mine)
    world.runs()
    assert world.server.children[AUTHORITY] == mine
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "Secret tiny-ca" in accepted["message"]
    assert LEARNERS not in world.server.children


def test_an_operator_that_may_not_write_secrets_says_so_and_starts_no_pod() -> None:
    world = sealed()
    world.server.refuses = {"tiny-ca": "secrets is forbidden"}
    world.runs()
    assert LEARNERS not in world.server.children
    assert "secrets is forbidden" in world.said("Accepted")["message"]
    world.server.refuses.clear()
    world.retry()
    world.run()
    assert made(world) == NAMES
    assert LEARNERS in world.server.children


def missing(world: World) -> str:
    """What is said while the certificates are not there, and no pod is."""
    accepted = world.said("Accepted")
    assert accepted["reason"] == "CertificatesMissing"
    assert not made(world)
    assert LEARNERS not in world.server.children
    return str(accepted["message"])


def test_an_operator_that_may_not_read_secrets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = sealed()
    read_by(world, monkeypatch, ApiError(403, "secrets is forbidden"))
    world.run()
    assert "secrets is forbidden" in missing(world)


# ------------------------------------------------------------ an authority that others make

CORPORATE = path("Secret", "demo", "corp-ca")
UNDER_CORPORATE = (
    "syncer",
    {"shards": 1, "tls": {"mode": "Required", "caSecret": "corp-ca"}},
)


def fill(world: World, **entries: bytes) -> Authorities:
    """Write the Secret as cert-manager does; returns the authority that it has."""
    made = make_authorities(JobIdentity(namespace="demo", job="corp", uid="-"), time.time())
    files = {"tls.crt": made.signer.certificate, "tls.key": made.signer.key, "ca.crt": b"root"}
    files |= {name.replace("_", "."): value for name, value in entries.items()}
    metadata = {"name": "corp-ca", "uid": "uid-corp", "resourceVersion": "1"}
    data = {name: base64.b64encode(value).decode() for name, value in files.items()}
    world.server.children[CORPORATE] = {"metadata": metadata, "data": data}
    return made


def test_no_pod_starts_before_the_secret_of_the_authority_can_sign() -> None:
    world = World(UNDER_CORPORATE)
    world.run()
    assert "corp-ca of spec.syncer.tls.caSecret: it is not there" in missing(world)
    fill(world, tls_key=b"")
    world.memory.written_at.clear()  # another message may wait for a while
    again(world)
    accepted = world.said("Accepted")
    assert accepted["reason"] == "CertificatesMissing"
    assert "tls.key: is missing" in accepted["message"]
    assert "isCA: true" in accepted["message"]
    assert made(world) == {"corp-ca"}
    fill(world)
    assert "apply StatefulSet tiny-us-east" in again(world)
    assert world.said("Accepted")["status"] == "True"


def test_certificates_are_signed_with_an_authority_of_others_and_its_secret_is_not_written() -> (
    None
):
    world = World(UNDER_CORPORATE)
    corporate = fill(world)
    before = copy.deepcopy(world.server.children[CORPORATE])
    world.runs()
    assert made(world) == NAMES - {"tiny-ca"} | {"corp-ca"}
    assert world.server.children[CORPORATE] == before
    for where in (SHARD, LEARNER):
        assert credentials(world, where).fault(NOW) is None
        assert credentials(world, where).authority == corporate.bundle
    assert {*world.shards.own} == {"us-east", "eu-west"}
    assert world.run() == []


@pytest.mark.parametrize("restarted", [False, True])
def test_when_an_authority_of_others_is_renewed_the_former_is_believed_until_it_expires(
    monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    world = World(UNDER_CORPORATE)
    former = fill(world)
    world.runs()
    monkeypatch.setattr("time.time", lambda: NOW + 100 * DAY)
    renewed = fill(world)
    if restarted:
        world.reconciler.memories.clear()
        world.run()
    again(world)
    for where in (SHARD, LEARNER):
        assert credentials(world, where).authority == renewed.bundle + former.bundle
        assert credentials(world, where).fault(NOW + 100 * DAY) is None
    world.run()
    assert world.run() == []
    at(monkeypatch, world, 361)
    assert credentials(world, SHARD).authority == renewed.bundle


def test_an_authority_of_others_that_is_not_renewed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(UNDER_CORPORATE)
    fill(world)
    world.runs()
    at(monkeypatch, world, 299)
    world.run()
    assert world.said("Degraded")["reason"] != "CredentialsExpire"
    at(monkeypatch, world, 301)
    world.run()
    degraded = world.said("Degraded")
    assert degraded["reason"] == "CredentialsExpire"
    assert "corp-ca expires soon" in degraded["message"]


# ------------------------------------------------------------ regions that leave, or are revoked

WEST = path("Secret", "demo", "tiny-tls-learner-eu-west")


def without_west(world: World) -> None:
    """The region leaves the job: first its StatefulSet goes, then what it has mounted."""
    spec = world.job["spec"]
    spec["regions"] = [each for each in spec["regions"] if each["name"] != "eu-west"]
    if KEY in world.reconciler.memories:
        world.memory.certificates.next_at = 0.0
    world.run()
    again(world)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_secret_of_a_region_that_has_gone_is_deleted_and_no_other(restarted: bool) -> None:
    world = begun()
    if restarted:
        world.reconciler.memories.clear()
    without_west(world)
    assert made(world) == NAMES - {"tiny-tls-learner-eu-west"}


def test_a_secret_of_somebody_else_is_left_alone() -> None:
    world = begun()
    world.server.children[WEST]["metadata"] |= {"ownerReferences": [], "labels": {}}
    without_west(world)
    assert WEST in world.server.children


def test_a_revocation_makes_new_certificates_and_tells_the_shards_which_count() -> None:
    world = begun()
    before = {where: credentials(world, where) for where in (LEARNER, WEST, SHARD)}
    world.job["metadata"]["annotations"] = {Annotation.REVOKED: '{"eu-west": 2}'}
    world.runs()
    assert credentials(world, WEST).identity.generation == 2
    for where in (LEARNER, SHARD):
        assert credentials(world, where) == before[where]
    own = {region: each.identity.generation for region, each in world.shards.own.items()}
    assert own == {"us-east": 0, "eu-west": 2}
    listed = world.live("ConfigMap", "tiny-slots")["data"]["slots.json"]
    assert Expected.from_json(listed).limits == (Limit(region="eu-west", generation=2),)


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", "2", '{"eu-west": "2"}', '{"eu-west": -1}', '{"eu-west": true}', 7]
)
def test_a_spoilt_annotation_of_revocations_counts_as_none(spoilt: object) -> None:
    assert generations({Annotation.REVOKED: spoilt}) == {}
