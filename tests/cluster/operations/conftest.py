"""What the scenarios share: people whose jobs train."""

from collections.abc import Iterator

import pytest

from cluster.conftest import a_namespace
from cluster.installed import Installed
from cluster.kubectl import Kubectl
from cluster.person import Person


@pytest.fixture
def person(atoll: Installed, kube: Kubectl, namespace: str) -> Person:
    """Return a person with an empty namespace, on a cluster where Atoll is installed."""
    return Person(kube=kube, namespace=namespace)


@pytest.fixture(scope="session")
def owner(atoll: Installed, kube: Kubectl) -> Iterator[Person]:
    """Return the person of the job that scenarios share which leave it as it was."""
    with a_namespace([kube]) as name:
        yield Person(kube=kube, namespace=name)


@pytest.fixture
def running(owner: Person) -> Person:
    """Return them with the job training by its manifest, and no pod more than it has."""
    owner.applies()
    owner.rests(2)  # whatever a former test has left under way is over
    owner.reads("Degraded", "False")
    return owner


@pytest.fixture(scope="module")
def begun(
    request: pytest.FixtureRequest, atoll: Installed, kube: Kubectl, shared_namespace: str
) -> dict[str, Person]:
    """Return the people of the module's JOBS, which all began at once, by the jobs' names."""
    names: tuple[str, ...] = request.module.JOBS
    people = {
        name: Person(kube=kube, namespace=shared_namespace, name=name.replace(" ", "-"))
        for name in names
    }
    for person in people.values():
        person.applies()
    for person in people.values():
        person.starts()
    return people
