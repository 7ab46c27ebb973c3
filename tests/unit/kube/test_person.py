"""What a person is told whom the cluster refuses."""

import json

import pytest
from kubernetes import client

from atoll_operator.kube.person import ASK, REMEDY, refused

MISSING = 'pods is forbidden: User "me" cannot list resource "pods"'


@pytest.mark.parametrize(("said", "remedy"), [(MISSING, ASK), ("exceeded quota: gpus", REMEDY)])
def test_a_right_that_is_missing_is_told_from_another_refusal(said: str, remedy: str) -> None:
    error = client.ApiException(status=403, reason="Forbidden")
    error.body = json.dumps({"message": said})
    found = refused("tiny", error)
    assert (found.problem, found.remedy) == (f"the cluster refuses: {said}", remedy)
