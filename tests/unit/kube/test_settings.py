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


def test_the_user_of_pods_may_be_left_to_the_cluster() -> None:
    assert from_environment(IMAGES).pod_user == 65532
    assert from_environment({**IMAGES, Env.OPERATOR_POD_USER: "1000"}).pod_user == 1000
    assert from_environment({**IMAGES, Env.OPERATOR_POD_USER: ""}).pod_user is None
    for wrong in ("0", "root", "-1", "1.5"):
        with pytest.raises(SpecError, match=f"{Env.OPERATOR_POD_USER}.*give a number above 0"):
            from_environment({**IMAGES, Env.OPERATOR_POD_USER: wrong})


def test_an_install_serves_all_regions_or_those_that_it_names() -> None:
    assert from_environment({**IMAGES, Env.OPERATOR_REGIONS: "*"}).spans_regions
    some = from_environment({**IMAGES, Env.OPERATOR_REGIONS: "a, b"})
    assert [some.serves(each) for each in ("a", "b", "c")] == [True, True, False]
    with pytest.raises(SpecError, match=Env.OPERATOR_REGIONS):
        from_environment({**IMAGES, Env.OPERATOR_REGIONS: "*,a"})
