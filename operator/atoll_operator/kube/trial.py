"""Lets the API server try a workload and one of its pods in a dry run, before anything changes.

A StatefulSet is taken whatever its pods ask for: whether a priority class or a runtime class
exists, what the Pod Security level of the namespace, a LimitRange or a webhook allows is looked at
only when its controller makes a pod. By then the old pods are gone. So a pod is tried too, as the
controller would make it.

What is no mistake in the template is left to the controller: a quota that is used up is free again
when an old pod ends, a webhook may not know dry runs, of which the API server then refuses every
one, and an operator of which the role was not renewed may try no pods.
"""

import copy
from typing import Final

from atoll_operator.kube.edges.api import Api, ApiError, path
from atoll_operator.kube.names import account_name
from atoll_operator.kube.observation import Object
from atoll_protos.names import Label

REFUSED: Final = 422  # HTTP: the object is wrong
NO_MISTAKE: Final = (
    "exceeded quota",
    "does not support dry run",
    'cannot create resource "pods"',
)


async def refusal(api: Api, workload: Object) -> ApiError | None:
    """Why the API server would refuse the workload or its pods; None: it would not.

    Where another object has the name of a workload that is to be made, None too: what becomes of it
    is decided when it is applied.
    """
    metadata = workload["metadata"]
    where = path(workload["kind"], metadata["namespace"], metadata["name"])
    if "uid" not in metadata and await api.get(where) is not None:
        return None
    try:
        await api.dry_run(workload)
    except ApiError as error:
        if not _is_no_mistake(error):
            return error
    try:
        await api.dry_run_pod(pod_of(workload))
    except ApiError as error:
        if not _is_no_mistake(error):
            return ApiError(REFUSED, f"its pods would be refused: {error.message}")
    return None


def _is_no_mistake(error: ApiError) -> bool:
    return any(each in error.message for each in NO_MISTAKE)


def pod_of(workload: Object) -> Object:
    """A pod as the workload's controller would make it, under a name that nobody has.

    The service account that the operator makes may not be there yet, so the namespace's own takes
    its place: without one of the two every pod is refused.
    """
    metadata, template = workload["metadata"], copy.deepcopy(workload["spec"]["template"])
    labels = metadata["labels"]
    if template["spec"].get("serviceAccountName") == account_name(
        labels[Label.JOB], labels[Label.ROLE]
    ):
        del template["spec"]["serviceAccountName"]
    name = {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **name},
        "spec": template["spec"],
    }
