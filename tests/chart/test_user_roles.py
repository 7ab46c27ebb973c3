"""The roles for people: what each may do, alone or as a part of the cluster's own roles."""

import pytest

from chart.rendering import Rendered, named, rights, template

PREFIX = "atoll-system-atoll-operator-jobs-"
JOBS, STATUS = (("atoll.dev", f"decoupledtrainingjobs{each}") for each in ("", "/status"))
READ, WRITE = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
MEMBERS = {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}, "admin": {"admin"}}
AGGREGATES = "rbac.authorization.k8s.io/aggregate-to-"


@pytest.mark.parametrize("aggregate", ["true", "false"])
def test_each_role_is_a_part_of_the_clusters_roles_that_include_it_or_is_there_to_be_bound(
    helm: str, aggregate: str
) -> None:
    found = template(helm, f"rbac.aggregate={aggregate}")
    for role, members in MEMBERS.items():
        (one,) = named(found, "ClusterRole", PREFIX + role)
        labels = {k: v for k, v in one["metadata"]["labels"].items() if k.startswith(AGGREGATES)}
        wanted = members if aggregate == "true" else ()
        assert labels == {AGGREGATES + each: "true" for each in wanted}


def test_viewers_change_nothing_editors_read_no_secret_and_administrators_print_credentials(
    rendered: Rendered,
) -> None:
    roles = (named(rendered, "ClusterRole", PREFIX + role)[0] for role in MEMBERS)
    view, edit, admin = map(rights, roles)
    assert (view[JOBS], edit[JOBS]) == (READ, READ | WRITE)
    assert view["", "pods"] == view["", "events"] == READ
    assert view["", "pods/log"] == {"get"}
    assert not {verb for verbs in view.values() for verb in verbs} & WRITE
    assert view[STATUS] == edit[STATUS] == {"get"}
    assert edit["", "pods/exec"] == {"create"}
    assert view.keys() <= edit.keys()
    assert ("", "secrets") not in edit
    assert admin == {**edit, ("", "secrets"): {"get"}}
