"""What the scenarios share."""

import pytest

from cluster.installed import Installed
from cluster.kubectl import Kubectl
from cluster.person import Person


@pytest.fixture
def person(atoll: Installed, kube: Kubectl, namespace: str) -> Person:
    """Return a person with an empty namespace, on a cluster where Atoll is installed."""
    return Person(kube=kube, namespace=namespace)
