"""Who may call what, decided from the identity in the peer's certificate."""

import itertools
from dataclasses import replace

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS, ExitCode, exit_code_of
from atoll_protos.network.credentials import Identity, JobIdentity, Role
from atoll_syncer.edges import admission
from atoll_syncer.edges.admission import CallRefusal, Reason
from unit.certificate_values import OWNER, identity

REGIONS = ("us-east", "eu-west")
PEERS = [identity(role, region) for role, region in itertools.product(Role, REGIONS)]


def reason(found: CallRefusal | Identity | None) -> Reason | None:
    return found.reason if isinstance(found, CallRefusal) else None


def told(role: Role, region: str, peer: Identity) -> Reason | None:
    """Why a peer may not do what this role alone may in this region."""
    if peer.role is not role:
        return Reason.OTHER_ROLE
    return None if peer.region == region else Reason.OTHER_REGION


@pytest.mark.parametrize("peer", PEERS, ids=str)
def test_who_may_call_what(peer: Identity) -> None:
    """The owner of a slot, and what becomes of the job, are told by the region's operator alone."""
    learner, no_learner = (None, Reason.OTHER_ROLE)[:: 1 if peer.role is Role.LEARNER else -1]
    slot = pb.Join(slot="us-east-3")
    assert reason(admission.of_join(peer, slot)) is told(Role.LEARNER, "us-east", peer)
    for name in ("", "us-east", "US-0", "us-east-01"):  # no slot: left to the rules
        assert reason(admission.of_join(peer, pb.Join(slot=name))) is learner
    for observer in (pb.Join(observer=True), pb.Join(observer=True, slot="us-east-0")):
        assert reason(admission.of_join(peer, observer)) is no_learner
    owner = admission.of_owner(peer, "eu-west-0")
    assert reason(owner) is told(Role.OPERATOR, "eu-west", peer)
    assert reason(admission.of_owner(peer, "no slot"))
    intent = admission.of_intent(peer, "us-east")
    assert reason(intent) is told(Role.OPERATOR, "us-east", peer)
    between_shards = admission.of_roles(peer, admission.SHARDS, "Hello")
    assert reason(between_shards) is (None if peer.role is Role.SHARD else Reason.OTHER_ROLE)
    for other in (*PEERS, None):  # a bulk stream is for who has opened the session alone
        bulk = admission.of_bulk(peer, other)
        assert reason(bulk) is (None if peer == other else Reason.OTHER_PEER)
    assert admission.of_bulk(replace(peer, generation=3), peer) is None  # renewed credentials


def test_a_machine_joins_only_as_a_slot_that_the_list_gives_it() -> None:
    given = {"ws-3": {"us-east-0", "us-east-2"}, "ws-4": {"us-east-1"}, "ws-5": set[str]()}

    def found(machine: str, slot: str) -> CallRefusal | None:
        return admission.of_machine(replace(identity(), machine=machine), given, "joining", slot)

    assert found("ws-3", "us-east-0") is found("ws-3", "us-east-2") is None
    assert found("ws-3", "") is None  # a call that is for no slot
    assert found("", "us-east-1") is None  # a certificate for any machine of its region
    assert reason(found("ws-9", "us-east-0")) is reason(found("ws-9", "")) is Reason.REVOKED
    assert reason(found("ws-5", "us-east-0")) is Reason.OTHER_SLOT
    assert str(found("ws-3", "us-east-1")) == (
        "joining as 'us-east-1' needs the certificate of a machine to which the job's list gives "
        "'us-east-1', and that of learner on machine ws-3 of region us-east of team/bytes "
        "(UID 0b-1), which has us-east-0, us-east-2, was presented"
    )


def test_the_bulk_stream_of_a_session_is_not_for_another_machine_of_its_region() -> None:
    here, there = (replace(identity(), machine=each) for each in ("ws-3", "ws-4"))
    assert admission.of_bulk(here, here) is None
    for other in (there, identity()):
        assert reason(admission.of_bulk(other, here)) is Reason.OTHER_PEER
        assert reason(admission.of_bulk(here, other)) is Reason.OTHER_PEER


def another(namespace: str = "team", job: str = "bytes", uid: str = "0b-1") -> tuple[str]:
    return (identity(owner=JobIdentity(namespace=namespace, job=job, uid=uid)).uri,)


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        ((identity().uri,), None),
        (another(job="words"), "other_job"),
        (another("x"), "other_job"),
        (another(uid="old"), "other_run"),
        ((), "no_identity"),
        (("spiffe://example.com/x",), "no_identity"),
        ((identity().uri, identity(Role.OPERATOR).uri), "no_identity"),
    ],
)
def test_only_processes_of_this_run_of_the_job_are_anybody(
    uris: tuple[str, ...], expected: str | None
) -> None:
    found = admission.identify(OWNER, uris, "Status")
    assert reason(found) == expected
    if expected is None:
        assert found == identity()


def test_a_refusal_names_what_was_presented_and_what_was_needed() -> None:
    refused = admission.of_join(identity(region="eu-west"), pb.Join(slot="us-east-0"))
    assert str(refused) == (
        "joining as 'us-east-0' needs the certificate of the learner of region us-east, and that "
        "of learner of region eu-west of team/bytes (UID 0b-1) was presented"
    )
    assert refused is not None
    assert refused.end.reason == str(refused)
    assert "credentials of the learner of region us-east" in refused.end.remedy


def test_what_a_peer_has_chosen_makes_no_refusal_long() -> None:
    long = "x" * 1_000_000
    for found in (
        admission.of_join(identity(Role.OPERATOR), pb.Join(slot=long)),
        admission.of_owner(identity(), long),
        admission.identify(OWNER, [long], "Status"),
        admission.of_machine(replace(identity(), machine="m"), {"m": [long]}, "", "y" + long),
    ):
        assert isinstance(found, CallRefusal)
        assert len(str(found)) < 500


def test_a_refused_learner_ends_as_bad_input_but_waits_for_the_end_of_a_former_run() -> None:
    """A job that is made again gets shards that take the place of the former ones."""
    assert exit_code_of(pb.NOT_ALLOWED) is ExitCode.BAD_INPUT
    assert not REFUSALS[pb.NOT_ALLOWED].retry
    for each in Reason:
        refused = CallRefusal(reason=each, asked="x", needed="y", presented="z")
        assert refused.end.code == pb.NOT_ALLOWED
        passing = (Reason.OTHER_RUN, Reason.REVOKED, Reason.OTHER_SLOT)
        assert refused.end.retry == (each in passing)


def test_certificates_of_an_older_generation_of_their_region_are_revoked() -> None:
    old, new = (replace(identity(Role.LEARNER), generation=n) for n in (1, 2))
    found = admission.of_generation(old, 2, "joining")
    assert reason(found) is Reason.REVOKED
    assert found is not None
    assert (found.end.code, found.end.retry) == (pb.NOT_ALLOWED, True)
    assert "generation 2 or later of region us-east" in str(found)
    assert admission.of_generation(new, 2, "joining") is None
    assert reason(admission.of_generation(identity(Role.OPERATOR), 2, "asking")) is Reason.REVOKED
    assert admission.of_generation(identity(Role.SHARD), 2, "asking") is None
