"""What the chart gives an install through its environment."""

import pytest

from atoll_operator.kube.settings import from_environment
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

IMAGES = {Env.WORKER_IMAGE: "w", Env.SYNCER_IMAGE: "s"}


def test_the_lease_is_a_namespace_and_a_name() -> None:
    found = from_environment({**IMAGES, Env.OPERATOR_LEASE: "atoll-system/atoll-operator"})
    assert found.lease == ("atoll-system", "atoll-operator")
    assert from_environment(IMAGES).lease == ("default", "atoll-operator")


@pytest.mark.parametrize("wrong", ["atoll-operator", "/atoll", "a/", "a/b/c"])
def test_a_lease_that_is_neither_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(SpecError, match=f"{Env.OPERATOR_LEASE}.*give NAMESPACE/NAME"):
        from_environment({**IMAGES, Env.OPERATOR_LEASE: wrong})
