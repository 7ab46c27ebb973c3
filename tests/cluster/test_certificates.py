"""Mutual TLS on a real cluster: a job of it trains, no other peer is answered, and keys change."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import yaml

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authorities, make_authorities
from atoll_protos.network.channels import TARGET_NAME
from atoll_protos.network.credentials import CERTIFICATE, KEY, Credentials, JobIdentity
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import PORT, Job, manifest, pace
from cluster.typed import blocks

pytestmark = pytest.mark.cluster

REGIONS = {"us-east": 1, "eu-west": 1}
LIFE_SECONDS = 300.0  # a kubelet shows pods a changed Secret within some 90 s
SYNCER = {"region": "us-east", "shards": 1, "tls": {"mode": "Required"}}


def refusal(channel: grpc.Channel) -> grpc.StatusCode:
    """What Status ends with on this channel."""
    with channel, pytest.raises(grpc.RpcError) as caught:
        SyncerStub(channel).Status(pb.StatusRequest(), timeout=60)
    code: grpc.StatusCode = caught.value.code()
    return code


def begin(kube: Kubectl, namespace: str, **spec: object) -> Job:
    job = Job(kube=kube, namespace=namespace, name="sealed")
    kube.apply(namespace, manifest("sealed", REGIONS, **{"syncer": SYNCER, **spec}))
    job.trains(sum(REGIONS.values()))
    return job


def address(job: Job) -> str:
    (pod,) = job.pods("shard").values()
    return f"{pod['status']['podIP']}:{PORT}"


def test_a_job_trains_to_its_end_over_tls_and_answers_nobody_without_a_certificate(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = begin(kube, namespace, learner=pace(100))
    where, own = address(job), job.credentials()
    assert own is not None
    assert refusal(grpc.insecure_channel(where)) is grpc.StatusCode.UNAVAILABLE
    names = [(TARGET_NAME, own.identity.server_name)]
    stranger = grpc.secure_channel(
        where, grpc.ssl_channel_credentials(own.authority), options=names
    )
    assert refusal(stranger) is grpc.StatusCode.UNAVAILABLE
    until("the operator is answered", lambda: job.is_true("Progressing"))
    job.patch(steps=80)  # only now: a shard that has gone answers nobody either
    until("Complete", lambda: job.is_true("Complete"))
    assert job.condition("Accepted")["status"] == "True"


@pytest.fixture
def short_lives(atoll: Installed) -> Iterator[None]:
    """Let certificates of jobs live for LIFE_SECONDS."""
    variable = "ATOLL_OPERATOR_CERTIFICATE_SECONDS"
    revision = atoll.upgrade({"extraEnv[0].name": variable, "extraEnv[0].value": str(LIFE_SECONDS)})
    yield
    atoll.rollback(revision)


@pytest.mark.long
def test_certificates_change_while_a_job_trains_and_no_session_ends(
    short_lives: None, kube: Kubectl, namespace: str
) -> None:
    job = begin(kube, namespace, learner=pace(300))
    first, sessions, pods = job.credentials("shard"), incarnations(job), job.uids()
    assert first is not None
    until("another certificate", changed(job, first), LIFE_SECONDS)
    until(
        "the shard's pod has it",
        lambda: mounted(job) == getattr(job.credentials("shard"), "certificate", b""),
        LIFE_SECONDS,
    )
    job.channels.clear()  # a new connection
    assert incarnations(job) == sessions
    assert job.uids() == pods


def incarnations(job: Job) -> dict[str, int]:
    """By slot; each session that begins counts one up."""
    reply = job.answer()
    return {slot.slot: slot.incarnation for slot in reply.slots}


def changed(job: Job, first: Credentials) -> Callable[[], bool]:
    return lambda: job.credentials("shard") != first


def mounted(job: Job) -> bytes:
    """The certificate that the shard's container sees."""
    words = ("exec", "deploy/sealed-syncer-0", "--", "cat", "/etc/atoll-tls/tls.crt")
    return job.kubectl(*words).encode()


CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.21.2"


@pytest.fixture
def certificates(kube: Kubectl, tmp_path: Path) -> Iterator[None]:
    """The definition of Certificate, as cert-manager's Go module has it."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, which fetches cert-manager's definitions")
    (tmp_path / "go.mod").write_text("module fetch\n")
    words = ["go", "mod", "download", "-json", CERT_MANAGER]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    file = f"{json.loads(done.stdout)['Dir']}/deploy/crds/cert-manager.io_certificates.yaml"
    kube("create", "-f", file)
    kube.establish("certificates.cert-manager.io")
    yield
    kube("delete", "-f", file)


@pytest.mark.long
def test_a_job_trains_under_an_authority_that_cert_manager_makes_and_renews(
    short_lives: None, certificates: None, kube: Kubectl, namespace: str
) -> None:
    """No cert-manager runs here: the test applies the page's Certificate and fills its Secret."""
    shown = blocks("docs/security.md", "### An authority of cert-manager", "yaml")
    order, spec = map(yaml.safe_load, shown)
    order["metadata"]["namespace"] = namespace
    kube.apply(namespace, order)
    job = Job(kube=kube, namespace=namespace, name="sealed")
    tls = spec["spec"]["syncer"]["tls"]
    syncer = {**SYNCER, "tls": tls}
    kube.apply(namespace, manifest("sealed", REGIONS, syncer=syncer, learner=pace(300)))
    until("it waits", lambda: job.condition("Accepted")["reason"] == "CertificatesMissing")
    assert not job.pods()
    first = fill(kube, namespace, "atoll-ca")
    job.trains(sum(REGIONS.values()))
    until("accepted", lambda: job.is_true("Accepted"))
    own, sessions = job.credentials("shard"), incarnations(job)
    assert own is not None
    assert own.authority == first.bundle
    renewed = fill(kube, namespace, "atoll-ca")  # with another key, as rotationPolicy: Always does
    both = renewed.bundle + first.bundle

    def signed() -> bool:
        found = job.credentials("shard")
        return found is not None and found.authority == both

    until("signed again", signed, LIFE_SECONDS)
    job.channels.clear()
    until("the shard takes the new ones", lambda: incarnations(job).keys() == sessions.keys())


def fill(kube: Kubectl, namespace: str, name: str) -> Authorities:
    """Write the Secret of an authority, as cert-manager does; returns the authority."""
    made = make_authorities(JobIdentity(namespace=namespace, job=name, uid="-"), time.time())
    files = {CERTIFICATE: made.signer.certificate, KEY: made.signer.key}
    data = {entry: base64.b64encode(value).decode() for entry, value in files.items()}
    metadata = {"name": name, "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    kube.apply(namespace, {**secret, "type": "kubernetes.io/tls"})
    return made
