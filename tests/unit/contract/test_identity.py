"""Identities: what a certificate's URI says, and what is none."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import Identity, Role

PARTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
OURS = Identity(namespace="team", job="bytes", uid="0b-1", region="us-east", role=Role.LEARNER)
URI = "spiffe://atoll.dev/ns/team/job/bytes/uid/0b-1/region/us-east/role/learner"


@given(PARTS, PARTS, PARTS, PARTS, st.sampled_from(Role))
def test_an_identity_is_read_back_from_its_uri(
    namespace: str, job: str, uid: str, region: str, role: Role
) -> None:
    one = Identity(namespace=namespace, job=job, uid=uid, region=region, role=role)
    assert Identity.parse(one.uri) == one


def test_the_uri_and_the_names_stay_as_they_are() -> None:
    """Certificates of a former version of the operator are believed by the next one."""
    third = dataclasses.replace(OURS, generation=3)
    assert (OURS.uri, third.uri) == (URI, f"{URI}/generation/3")
    assert Identity.parse(third.uri) == third
    here = dataclasses.replace(OURS, machine="ws-3.lab", generation=2)
    assert here.uri == f"{URI}/machine/ws-3.lab/generation/2"
    assert Identity.parse(here.uri) == here
    assert str(here) == "learner on machine ws-3.lab of region us-east of team/bytes (UID 0b-1)"
    assert OURS.server_name == OURS.owner.server_name == "bytes.team.job.atoll.dev"
    assert str(OURS) == "learner of region us-east of team/bytes (UID 0b-1)"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        URI.replace("atoll.dev", "example.com"),
        URI.replace("spiffe:", "https:"),
        URI.replace("learner", "admin"),
        URI.replace("us-east", ""),
        URI.replace("us-east", "us/east"),
        URI.replace("/uid/0b-1", ""),
        URI + "/",
        URI + "\n",
        URI + "/role/operator",
        URI + "/generation/2/machine/ws-3",
        URI + "/machine/",
        URI + "/machine/ws-3/machine/ws-4",
        URI.upper(),
    ],
)
def test_what_names_no_process_of_a_job_is_refused_in_words(uri: str) -> None:
    with pytest.raises(SpecError, match=r"^identity: .* does not name a process of a job; use"):
        Identity.parse(uri)


@pytest.mark.parametrize("role", [each for each in Role if each is not Role.LEARNER])
def test_certificates_of_learners_alone_name_a_machine(role: Role) -> None:
    """A machine's certificate can neither serve a shard nor revoke others."""
    with pytest.raises(SpecError, match=rf"^identity.machine: .* role {role} .*; leave it out"):
        Identity.parse(URI.replace("learner", role) + "/machine/ws-3")


@pytest.mark.parametrize("field", ["namespace", "job", "uid", "region"])
def test_only_a_machine_may_be_left_out(field: str) -> None:
    empty: Any = {field: ""}
    with pytest.raises(SpecError, match=f"^identity.{field}: "):
        dataclasses.replace(OURS, **empty)


@pytest.mark.parametrize("field", ["namespace", "job", "uid", "region", "machine"])
@pytest.mark.parametrize("value", ["a/b", "a b", "-a", "a?", "\n"])
def test_a_part_that_could_be_read_as_another_one_cannot_be_made(field: str, value: str) -> None:
    whole = {"namespace": "team", "job": "bytes", "uid": "0b-1", "region": "us-east"}
    parts: Any = whole | {field: value}
    with pytest.raises(SpecError, match=f"^identity.{field}: "):
        Identity(role=Role.LEARNER, **parts)
