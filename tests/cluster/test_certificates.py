"""Mutual TLS on a real cluster: a job of it trains, nobody else is answered, and keys change."""

from collections.abc import Callable, Iterator

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.channels import TARGET_NAME
from atoll_protos.credentials import Credentials
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import PORT, Job, manifest, pace

pytestmark = pytest.mark.cluster

REGIONS = {"us-east": 1, "eu-west": 1}
LIFE_SECONDS = 300.0  # a kubelet shows pods a changed Secret within some 90 s
SYNCER = {"region": "us-east", "shards": 1, "tls": {"mode": "Required"}}


def refusal(channel: grpc.Channel) -> grpc.StatusCode:
    """What Status ends with on this channel."""
    with channel, pytest.raises(grpc.RpcError) as caught:
        SyncerStub(channel).Status(pb.StatusRequest(), timeout=5)
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
    job = begin(kube, namespace, steps=160, learner=pace(300))
    where, own = address(job), job.credentials()
    assert own is not None
    assert refusal(grpc.insecure_channel(where)) is grpc.StatusCode.UNAVAILABLE
    names = [(TARGET_NAME, own.identity.server_name)]
    nobody = grpc.secure_channel(where, grpc.ssl_channel_credentials(own.authority), options=names)
    assert refusal(nobody) is grpc.StatusCode.UNAVAILABLE
    until("the operator is answered", lambda: job.is_true("Progressing"), 30)
    until("Complete", lambda: job.is_true("Complete"), 240)
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
    reply = job.status()
    assert reply is not None
    return {slot.slot: slot.incarnation for slot in reply.slots}


def changed(job: Job, first: Credentials) -> Callable[[], bool]:
    return lambda: job.credentials("shard") != first


def mounted(job: Job) -> bytes:
    """The certificate that the shard's container sees."""
    words = ("exec", "deploy/sealed-syncer-0", "--", "cat", "/etc/atoll-tls/tls.crt")
    return job.kubectl(*words).encode()
