"""The roles for people: what each may do, alone or as a part of the cluster's own roles."""

import pytest

from chart.rendering import Rendered, named, of_kind, rights, template

PREFIX = "atoll-system-atoll-operator-jobs-"
JOBS = ("atoll.dev", "decoupledtrainingjobs")
READ, WRITE = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
MEMBERS = {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}, "admin": {"admin"}}
AGGREGATES = "rbac.authorization.k8s.io/aggregate-to-"


@pytest.mark.parametrize("role", MEMBERS)
def test_each_role_is_a_part_of_the_clusters_roles_that_include_it(
    role: str, rendered: Rendered
) -> None:
    (found,) = named(rendered, "ClusterRole", PREFIX + role)
    labels = {k: v for k, v in found["metadata"]["labels"].items() if k.startswith(AGGREGATES)}
    assert labels == {AGGREGATES + each: "true" for each in MEMBERS[role]}


def test_without_aggregation_the_roles_are_there_to_be_bound(helm: str) -> None:
    for each in of_kind(template(helm, "rbac.aggregate=false"), "ClusterRole"):
        assert not any(label.startswith(AGGREGATES) for label in each["metadata"]["labels"])
    for role in MEMBERS:
        assert named(template(helm, "rbac.aggregate=false"), "ClusterRole", PREFIX + role)


def test_viewers_read_jobs_and_logs_and_change_nothing(rendered: Rendered) -> None:
    (view,) = named(rendered, "ClusterRole", PREFIX + "view")
    found = rights(view)
    assert found[JOBS] == READ
    assert found["atoll.dev", "decoupledtrainingjobs/status"] == {"get"}
    assert found["", "pods"] == found["", "events"] == READ
    assert found["", "pods/log"] == {"get"}
    assert not {verb for verbs in found.values() for verb in verbs} & WRITE
    assert ("", "secrets") not in found


def test_editors_change_jobs_but_no_status_and_read_no_secret(rendered: Rendered) -> None:
    (edit,), (view,) = (named(rendered, "ClusterRole", PREFIX + role) for role in ("edit", "view"))
    found = rights(edit)
    assert found[JOBS] == READ | WRITE
    assert found["atoll.dev", "decoupledtrainingjobs/status"] == {"get"}
    assert found["", "pods/exec"] == {"create"}
    assert ("", "secrets") not in found
    assert rights(view).keys() <= found.keys()


def test_administrators_may_also_print_the_credentials_for_another_cluster(
    rendered: Rendered,
) -> None:
    (edit,), (admin,) = (
        named(rendered, "ClusterRole", PREFIX + role) for role in ("edit", "admin")
    )
    assert rights(admin) == {**rights(edit), ("", "secrets"): {"get"}}
