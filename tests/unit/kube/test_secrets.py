"""The Secrets with a job's certificates: made before its pods, renewed, and read seldom."""

import base64
import copy
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.certificates import Authorities
from atoll_operator.kube import secrets
from atoll_operator.kube.edges.api import ApiError, path
from atoll_operator.kube.names import TLS_FOLDER, TLS_VOLUME, Annotation
from atoll_operator.kube.plan.owner import generations
from atoll_protos.credentials import Credentials
from atoll_protos.environment import Env
from atoll_protos.expected import Expected, Limit
from atoll_protos.identity import Role
from unit.kube.world import KEY, World

pytestmark = pytest.mark.usefixtures("still")

NOW = 1_800_000_000.0  # as `still` says
DAY = 86_400.0
AUTHORITY = path("Secret", "demo", "tiny-ca")
SHARD = path("Secret", "demo", "tiny-tls-shard")
LEARNER = path("Secret", "demo", "tiny-tls-learner-us-east")
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


def reads(world: World) -> list[str]:
    """Names of the Secrets that are read from now on."""
    found: list[str] = []
    get = world.server.get

    async def counted(where: str) -> Any:
        if "/secrets/" in where:
            found.append(where.rpartition("/")[2])
        return await get(where)

    world.server.get = counted  # type: ignore[method-assign]
    return found


def look_again(world: World) -> None:
    """The time of the next reading has come."""
    world.reconciler.memories[KEY].certificates.next_at = 0.0


def at(monkeypatch: pytest.MonkeyPatch, world: World, days: float) -> list[str]:
    """A pass so many days later; what it wrote."""
    monkeypatch.setattr("time.time", lambda: NOW + days * DAY)
    look_again(world)
    return world.run()


def sealed(*changes: tuple[str, Any]) -> World:
    """A job that talks over TLS."""
    return World(TLS, *changes)


def begun(*changes: tuple[str, Any]) -> World:
    world = sealed(*changes)
    world.run()
    world.run()
    return world


def test_certificates_of_every_role_and_region_are_there_before_the_pods_that_mount_them() -> None:
    world = sealed()
    wrote = world.run()
    assert made(world) == NAMES
    workloads = [n for n, each in enumerate(wrote) if each.startswith(("apply S", "apply D"))]
    first = next(n for n in workloads if "Secret" not in wrote[n])
    assert max(wrote.index(f"apply Secret {name}") for name in NAMES) < first
    who = credentials(world, LEARNER).check(NOW)
    assert (who.role, who.region, who.namespace, who.job) == (
        Role.LEARNER, "us-east", "demo", "tiny",
    )  # fmt: skip
    assert who.uid == "job-uid"
    (owner,) = world.server.children[LEARNER]["metadata"]["ownerReferences"]
    assert owner["uid"] == "job-uid"
    assert owner["controller"]


def test_pods_mount_the_certificate_of_their_role_and_sidecars_do_not() -> None:
    sidecar = {"name": "logs", "image": "logs:1"}
    world = begun(("learner", {"template": {"spec": {"containers": [{}, sidecar]}}}))
    template = world.server.children[path("StatefulSet", "demo", "tiny-us-east")]["spec"][
        "template"
    ]["spec"]
    (volume,) = [each for each in template["volumes"] if each["name"] == TLS_VOLUME]
    assert volume["secret"]["secretName"] == "tiny-tls-learner-us-east"
    assert volume["secret"]["defaultMode"] == 0o440  # of root and the pod's fsGroup
    assert template["securityContext"]["fsGroup"] == template["securityContext"]["runAsUser"]
    own, other = template["containers"]
    assert {"name": TLS_VOLUME, "mountPath": TLS_FOLDER} in own["volumeMounts"]
    assert {"name": Env.TLS_DIR, "value": TLS_FOLDER} in own["env"]
    assert "volumeMounts" not in other
    assert "env" not in other


def test_the_kubelet_probes_a_shard_on_its_port_of_plain_text() -> None:
    for mode, port in (("Required", 7701), ("Disabled", 7700)):
        world = begun(("syncer", {"shards": 1, "tls": {"mode": mode}}))
        shard = world.server.children[path("Deployment", "demo", "tiny-syncer-0")]
        container = shard["spec"]["template"]["spec"]["containers"][0]
        assert container["readinessProbe"]["grpc"] == {"port": port}
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env.get(Env.HEALTH_PORT) == ("7701" if mode == "Required" else None)


def test_the_operator_asks_with_a_certificate_of_its_own_for_each_region() -> None:
    world = begun()
    assert set(world.shards.own) == {"us-east", "eu-west"}
    for region, own in world.shards.own.items():
        who = own.check(NOW)
        assert (who.role, who.region) == (Role.OPERATOR, region)
    again = world.shards.own
    world.run()
    assert world.shards.own == again  # kept as long as it is good


def test_a_job_in_plain_text_has_no_secrets_and_is_asked_without() -> None:
    world = begun(("syncer", {"shards": 1, "tls": {"mode": "Disabled"}}))
    assert not made(world)
    assert world.shards.own is None


def test_a_pass_at_rest_reads_no_secret() -> None:
    world = begun()
    found = reads(world)
    for _ in range(5):
        assert world.run() == []
    assert found == []


def test_a_secret_that_is_deleted_or_changed_is_made_again_at_the_next_reading() -> None:
    world = begun()
    del world.server.children[SHARD]
    world.server.children[LEARNER]["data"]["tls.key"] = base64.b64encode(b"mine").decode()
    look_again(world)
    assert world.run() == ["apply Secret tiny-tls-shard", "apply Secret tiny-tls-learner-us-east"]
    assert credentials(world, SHARD).check(NOW).role is Role.SHARD
    assert credentials(world, LEARNER).fault(NOW) is None
    world.run()
    assert world.run() == []


def test_a_pod_that_cannot_start_brings_a_reading_at_once_but_not_in_each_pass() -> None:
    world = begun()
    del world.server.children[LEARNER]
    world.server.add_pod("tiny-us-east-0", "learner", "n1")
    pod = world.server.children[path("Pod", "demo", "tiny-us-east-0")]
    pod["metadata"]["creationTimestamp"] = "2027-01-15T07:00:00Z"
    pod["status"] = {"phase": "Pending"}
    world.reconciler.memories[KEY].certificates.read_at -= secrets.HURRY_SECONDS
    assert "apply Secret tiny-tls-learner-us-east" in world.run()
    world.run()
    found = reads(world)
    world.run()
    assert found == []


def test_a_leaf_is_renewed_at_two_thirds_of_its_life_and_no_workload_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_new_authority_is_believed_by_all_before_it_signs_and_the_former_one_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = begun()
    old = Authorities.from_files(files(world, AUTHORITY)).signer.certificate
    at(monkeypatch, world, 241)
    world.run()
    both = Authorities.from_files(files(world, AUTHORITY))
    assert both.signer.certificate == old
    assert both.successor is not None
    for where in (SHARD, LEARNER):
        assert both.successor.certificate in credentials(world, where).authority
        assert credentials(world, where).fault(NOW + 241 * DAY) is None
    at(monkeypatch, world, 301)
    world.run()
    found = Authorities.from_files(files(world, AUTHORITY))
    assert found.signer.certificate == both.successor.certificate
    leaf = credentials(world, LEARNER)
    assert old in leaf.authority
    assert leaf.fault(NOW + 301 * DAY) is None


def test_of_a_lost_authority_the_leaves_in_use_are_still_believed() -> None:
    world = begun()
    old = credentials(world, SHARD).authority
    del world.server.children[AUTHORITY]
    look_again(world)
    world.run()
    assert credentials(world, SHARD).authority != old
    assert old in credentials(world, SHARD).authority


def test_no_key_is_in_what_is_remembered_said_or_logged(capsys: pytest.CaptureFixture[str]) -> None:
    world = begun()
    memory = world.reconciler.memories[KEY]
    assert world.server.job is not None
    keys = [files(world, where)["tls.key"] for where in (AUTHORITY, SHARD, LEARNER)]
    keys += [each.key for each in memory.certificates.own.values()]
    said = capsys.readouterr()
    texts = [repr(memory), str(world.server.job), said.out, said.err, str(world.server.cache)]
    for key in keys:
        for text in texts:
            assert key.decode().splitlines()[1] not in text
            assert base64.b64encode(key).decode() not in text


def test_a_secret_of_somebody_else_is_left_alone_and_named() -> None:
    world = sealed()
    mine = {"metadata": {"name": "tiny-ca", "uid": "u", "resourceVersion": "1"}, "data": {}}
    world.server.children[AUTHORITY] = copy.deepcopy(mine)
    world.run()
    world.run()
    assert world.server.children[AUTHORITY] == mine
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "Secret tiny-ca" in accepted["message"]
    assert path("StatefulSet", "demo", "tiny-us-east") not in world.server.children


def test_an_operator_that_may_not_write_secrets_says_so_and_starts_no_pod() -> None:
    world = sealed()
    world.server.refuses = {"tiny-ca": "secrets is forbidden"}
    world.run()
    world.run()
    assert path("StatefulSet", "demo", "tiny-us-east") not in world.server.children
    assert "secrets is forbidden" in world.said("Accepted")["message"]
    world.server.refuses.clear()
    memory = world.reconciler.memories[KEY]
    for key, each in memory.refused.items():
        memory.refused[key] = replace(each, again_at=0.0)
    world.run()
    assert made(world) == NAMES
    assert path("StatefulSet", "demo", "tiny-us-east") in world.server.children


def test_an_operator_that_may_not_read_secrets_says_so() -> None:
    world = sealed()
    get = world.server.get

    async def forbidden(where: str) -> Any:
        if "/secrets/" in where:
            raise ApiError(403, "secrets is forbidden")
        return await get(where)

    world.server.get = forbidden  # type: ignore[method-assign]
    world.run()
    accepted = world.said("Accepted")
    assert accepted["reason"] == "CertificatesMissing"
    assert "secrets is forbidden" in accepted["message"]
    assert not made(world)


def test_a_region_that_is_added_has_its_certificate_before_its_pods() -> None:
    world = begun()
    assert world.server.job is not None
    world.server.job["spec"]["regions"].append({"name": "ap-south", "learners": 1})
    wrote = world.run()
    leaf = wrote.index("apply Secret tiny-tls-learner-ap-south")
    assert leaf < wrote.index("apply StatefulSet tiny-ap-south")


# ---------------------------------------------------------------- cert-manager

ISSUED = ("syncer", {"shards": 1, "tls": {"mode": "Required", "issuerRef": {"name": "corp"}}})


def test_with_an_issuer_certificates_are_asked_for_and_no_pod_is_started_before() -> None:
    world = World(ISSUED)
    wrote = world.run()
    assert "apply Certificate tiny-tls-shard" in wrote
    assert "apply Certificate tiny-tls-operator-eu-west" in wrote
    assert not made(world)
    order = world.server.children[path("Certificate", "demo", "tiny-tls-shard")]["spec"]
    assert order["secretName"] == "tiny-tls-shard"
    assert order["dnsNames"] == ["tiny.demo.job.atoll.dev"]
    assert order["uris"] == [
        "spiffe://atoll.dev/ns/demo/job/tiny/uid/job-uid/region/us-east/role/shard"
    ]
    assert order["issuerRef"] == {"name": "corp", "kind": "Issuer", "group": "cert-manager.io"}
    world.server.children[path("Certificate", "demo", "tiny-tls-shard")]["status"] = {
        "conditions": [{"type": "Ready", "status": "False", "reason": "DoesNotExist",
                        "message": "Issuer corp not found"}]
    }  # fmt: skip
    look_again(world)
    world.reconciler.memories[KEY].written_at.clear()  # another message may wait for a while
    world.run()
    accepted = world.said("Accepted")
    assert accepted["reason"] == "CertificatesMissing"
    assert "Issuer corp not found" in accepted["message"]
    assert path("StatefulSet", "demo", "tiny-us-east") not in world.server.children


def test_with_the_secrets_of_an_issuer_the_job_starts_and_the_operator_has_its_own() -> None:
    world, ours = World(ISSUED), begun()
    world.run()
    given = {**ours.reconciler.memories[KEY].certificates.own}
    for where in [each for each in ours.server.children if "/secrets/" in each]:
        live = copy.deepcopy(ours.server.children[where])
        live["metadata"] |= {"ownerReferences": [], "annotations": {}}
        if where != AUTHORITY:
            world.server.children[where] = live
    for region, own in given.items():
        name = f"tiny-tls-operator-{region}"
        data = {"tls.crt": own.certificate, "tls.key": own.key, "ca.crt": own.authority}
        world.server.children[path("Secret", "demo", name)] = {
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
    look_again(world)
    wrote = world.run()
    assert "apply StatefulSet tiny-us-east" in wrote
    assert world.server.children[SHARD]["metadata"]["ownerReferences"]  # goes with its job
    assert set(world.reconciler.memories[KEY].certificates.own) == {"us-east", "eu-west"}
    assert world.said("Accepted")["status"] == "True"


# ------------------------------------------------------------ regions that leave, or are revoked

WEST = path("Secret", "demo", "tiny-tls-learner-eu-west")


def without_west(world: World) -> None:
    assert world.server.job is not None
    spec = world.server.job["spec"]
    spec["regions"] = [each for each in spec["regions"] if each["name"] != "eu-west"]
    look_again(world)


def test_the_secret_of_a_region_that_has_gone_is_deleted_and_no_other() -> None:
    world = begun()
    without_west(world)
    world.run()  # its StatefulSet goes first
    look_again(world)
    world.run()
    assert made(world) == NAMES - {"tiny-tls-learner-eu-west"}


def test_an_operator_that_has_just_started_deletes_it_too() -> None:
    world = begun()
    without_west(world)
    world.reconciler.memories.clear()
    world.run()  # its StatefulSet goes first
    look_again(world)
    world.run()
    assert made(world) == NAMES - {"tiny-tls-learner-eu-west"}


def test_a_secret_of_somebody_else_is_left_alone() -> None:
    world = begun()
    world.server.children[WEST]["metadata"]["ownerReferences"] = []
    world.server.children[WEST]["metadata"]["labels"] = {}
    without_west(world)
    world.run()  # its StatefulSet goes first
    look_again(world)
    world.run()
    assert WEST in world.server.children


def test_a_revocation_makes_new_certificates_and_tells_the_shards_which_count() -> None:
    world = begun()
    before = {where: credentials(world, where) for where in (LEARNER, WEST, SHARD)}
    assert world.server.job is not None
    world.server.job["metadata"]["annotations"] = {Annotation.REVOKED: '{"eu-west": 2}'}
    world.run()
    world.run()
    assert credentials(world, WEST).identity.generation == 2
    assert {where: credentials(world, where) for where in (LEARNER, SHARD)} == {
        where: before[where] for where in (LEARNER, SHARD)
    }
    own = {region: each.identity.generation for region, each in world.shards.own.items()}
    assert own == {"us-east": 0, "eu-west": 2}
    listed = world.server.children[path("ConfigMap", "demo", "tiny-slots")]["data"]["slots.json"]
    assert Expected.from_json(listed).limits == (Limit(region="eu-west", generation=2),)


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", "2", '{"eu-west": "2"}', '{"eu-west": -1}', '{"eu-west": true}', 7]
)
def test_a_spoilt_annotation_of_revocations_counts_as_none(spoilt: object) -> None:
    assert generations({Annotation.REVOKED: spoilt}) == {}
