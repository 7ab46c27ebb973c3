"""Who may call what, decided from the identity in the peer's certificate."""

import itertools
from dataclasses import replace

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS, ExitCode, exit_code_of
from atoll_protos.identity import Identity, Owner, Role
from atoll_syncer import admission
from atoll_syncer.admission import Reason, Refusal
from unit.certificate_values import OWNER, identity

REGIONS = ("us-east", "eu-west")
PEERS = [identity(role, region) for role, region in itertools.product(Role, REGIONS)]


def reason(found: Refusal | Identity | None) -> Reason | None:
    return found.reason if isinstance(found, Refusal) else None


def test_a_slot_is_joined_by_a_learner_of_its_region_alone() -> None:
    for peer in PEERS:
        refused = reason(admission.of_join(peer, pb.Join(slot="us-east-3")))
        if peer.role is not Role.LEARNER:
            assert refused is Reason.OTHER_ROLE
        else:
            assert refused is (None if peer.region == "us-east" else Reason.OTHER_REGION)


def test_observers_need_a_role_that_may_see_all_values() -> None:
    for peer in PEERS:
        refused = reason(admission.of_join(peer, pb.Join(observer=True)))
        assert refused is (Reason.OTHER_ROLE if peer.role is Role.LEARNER else None)


def test_a_learner_cannot_get_around_its_region_as_an_observer_with_a_slot() -> None:
    join = pb.Join(observer=True, slot="us-east-0")
    assert reason(admission.of_join(identity(), join)) is Reason.OTHER_ROLE


@pytest.mark.parametrize("slot", ["", "us-east", "US-0", "us-east-01"])
def test_a_name_that_is_no_slot_is_left_to_the_rules_but_for_learners_alone(slot: str) -> None:
    for peer in PEERS:
        refused = reason(admission.of_join(peer, pb.Join(slot=slot)))
        assert refused is (None if peer.role is Role.LEARNER else Reason.OTHER_ROLE)


def test_the_owner_of_a_slot_is_named_by_the_operator_of_its_region_alone() -> None:
    for peer in PEERS:
        refused = reason(admission.of_owner(peer, "eu-west-0"))
        if peer.role is not Role.OPERATOR:
            assert refused is Reason.OTHER_ROLE
        else:
            assert refused is (None if peer.region == "eu-west" else Reason.OTHER_REGION)
    assert all(reason(admission.of_owner(peer, "no slot")) for peer in PEERS)


def test_what_becomes_of_the_job_is_said_by_the_operator_of_the_shards_region_alone() -> None:
    for peer in PEERS:
        refused = reason(admission.of_intent(peer, "us-east"))
        if peer.role is not Role.OPERATOR:
            assert refused is Reason.OTHER_ROLE
        else:
            assert refused is (None if peer.region == "us-east" else Reason.OTHER_REGION)


def test_the_calls_between_shards_are_for_shards_alone() -> None:
    for peer in PEERS:
        refused = reason(admission.of_roles(peer, admission.SHARDS, "Hello"))
        assert refused is (None if peer.role is Role.SHARD else Reason.OTHER_ROLE)


def test_a_bulk_stream_is_for_who_has_opened_the_session_alone() -> None:
    for peer, other in itertools.product(PEERS, PEERS):
        refused = reason(admission.of_bulk(peer, other))
        assert refused is (None if peer == other else Reason.OTHER_PEER)
    assert reason(admission.of_bulk(PEERS[0], None)) is Reason.OTHER_PEER


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        ((identity().uri,), None),
        ((identity(owner=Owner(namespace="team", job="words", uid="0b-1")).uri,), "other_job"),
        ((identity(owner=Owner(namespace="x", job="bytes", uid="0b-1")).uri,), "other_job"),
        ((identity(owner=Owner(namespace="team", job="bytes", uid="old")).uri,), "other_run"),
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
    ):
        assert isinstance(found, Refusal)
        assert len(str(found)) < 500


def test_a_refused_learner_ends_as_bad_input_but_waits_for_the_end_of_a_former_run() -> None:
    """A job that is made again gets shards that take the place of the former ones."""
    assert exit_code_of(pb.NOT_ALLOWED) is ExitCode.BAD_INPUT
    assert not REFUSALS[pb.NOT_ALLOWED].retry
    for each in Reason:
        refused = Refusal(reason=each, asked="x", needed="y", presented="z")
        assert refused.end.code == pb.NOT_ALLOWED
        assert refused.end.retry == (each in (Reason.OTHER_RUN, Reason.REVOKED))


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


def test_a_host_with_renewed_credentials_opens_lanes_of_a_session_of_the_former_ones() -> None:
    assert admission.of_bulk(replace(identity(), generation=3), identity()) is None
