"""Credentials that a person brings into a cluster without the syncer."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.authority.job_authority import Authorities
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.effects.secrets import HURRY_SECONDS
from atoll_operator.kube.names import TLS_VOLUME
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import Certificates, SecretSeen, ShardRefusal
from atoll_operator.kube.plan import certificates
from atoll_operator.kube.plan.certificates import work_of_region_secrets
from atoll_protos.network.credentials import JobIdentity, Role
from unit.certificate_values import DAY, NOW, OWNER, authorities, identity
from unit.kube.cluster_values import SETTINGS, job, reply
from unit.kube.world import KEY, World

NAME = "bytes-credentials-eu-west"
ISSUERS = authorities()


def brought_secret(
    issuers: Authorities = ISSUERS, owner: JobIdentity = OWNER, region: str = "eu-west"
) -> dict[str, Any]:
    return certificates.secret(issuers, owner, region, NAME, NOW, 30 * DAY)


def judged(raw: dict[str, Any] | None, now: float = NOW) -> certificates.JudgedSecret:
    return certificates.judged(raw, "bytes", "eu-west", now)


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
    raw = certificates.secret(issuers, TINY, region, "tiny-credentials-eu-west", STILL, 30 * DAY)
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
