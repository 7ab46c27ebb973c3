"""Lets the API server try a workload and one of its pods in a dry run, before anything changes.

A StatefulSet is taken whatever its pods ask for: what a priority class, the namespace's Pod
Security, a LimitRange or a webhook allows is looked at only when its controller makes a pod, and by
then the old pods are gone. So a pod is tried too, as the controller would make it; of a new job the
shards' claims are tried by themselves.

What is no mistake in the template is left to the controller: a quota that is used up, a webhook
that knows no dry runs, an operator that may try no pods. An answer that says nothing of the pod,
such as that a webhook is away, blames no template, but is waited for.

A pod names a controller that is not there. Kueue, which looks at pods of all namespaces, also at
those of no queue, looks for it and refuses the pod. Such a pod is tried once more without a
controller, and what is then said of that alone blames no template.
"""

import copy
from collections.abc import Sequence
from typing import Final

from atoll_operator.kube.edges.api import TOO_MANY_REQUESTS, Api, ApiError, ConflictError, path
from atoll_operator.kube.names import account_name
from atoll_operator.kube.observed.observation import WORKLOADS, Object
from atoll_protos.names import Label

REFUSED, UNAVAILABLE = 422, 503  # HTTP: the object is wrong, or nobody can say
QUOTA: Final = "exceeded quota"
NO_MISTAKE: Final = (QUOTA, "does not support dry run", 'cannot create resource "pods"')
NO_ACCOUNT: Final = "error looking up service account"
OF_CONTROLLER: Final = ("controller", "owner", "naked")  # in a message in small letters
OF_ACCOUNT: Final = ("serviceaccount", "service account")  # in a message in small letters
NOBODYS_UID: Final = "00000000-0000-0000-0000-000000000000"  # of a workload that is to be made


async def refusal(api: Api, workload: Object) -> ApiError | None:
    """Why the API server would refuse the workload or its pods, or a claim; None: it would not.

    None, too, where another object has the workload's name: what becomes of it is decided when it
    is applied. Raises ApiError when the API server has too much to do to judge anything.
    """
    metadata = workload["metadata"]
    where = path(workload["kind"], metadata["namespace"], metadata["name"])
    if "uid" not in metadata and await api.get(where) is not None:
        return None
    try:
        await api.dry_run(workload)
    except ConflictError:
        return None
    except ApiError as error:
        if not _is_no_mistake(error):
            return error
    if workload["kind"] not in WORKLOADS:
        return None
    wrong = await _refusal_of_pod(api, workload)
    if wrong is None:
        return None
    status = UNAVAILABLE if wrong.may_pass else REFUSED
    return ApiError(status, f"its pods would be refused: {wrong.message}")


async def _refusal_of_pod(api: Api, workload: Object) -> ApiError | None:
    """Try a pod with its role's service account, or the namespace's own while that is not there.

    The operator makes it in a job's first pass, and without one of the two every pod is refused.
    What a policy says of the namespace's own is no word about the job's pods.
    """
    pod = pod_of(workload)
    metadata = workload["metadata"]
    job, role = metadata["labels"][Label.JOB], metadata["labels"][Label.ROLE]
    own = account_name(job, role)
    if pod["spec"].get("serviceAccountName") != own:
        return await _try(api, pod)
    known = api.cache.children((metadata["namespace"], job))
    if any(each["kind"] == "ServiceAccount" and each["metadata"]["name"] == own for each in known):
        wrong = await _try(api, pod)
        if wrong is None or NO_ACCOUNT not in wrong.message:
            return wrong
    del pod["spec"]["serviceAccountName"]
    wrong = await _try(api, pod)
    return None if wrong is None or _says(wrong, OF_ACCOUNT) else wrong


async def _try(api: Api, pod: Object) -> ApiError | None:
    try:
        await api.dry_run_pod(pod)
    except ApiError as error:
        if not _lacks_controller(pod, error):
            return None if _is_no_mistake(error) else error
    else:
        return None
    free = {name: each for name, each in pod["metadata"].items() if name != "ownerReferences"}
    wrong = await _try(api, {**pod, "metadata": free})
    return None if wrong is None or _says(wrong, OF_CONTROLLER) else wrong


def _lacks_controller(pod: Object, error: ApiError) -> bool:
    """Whether a webhook has looked for the controller that the pod names."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(f'"{each["name"]}" not found' in error.message for each in owners)


def _says(error: ApiError, words: Sequence[str]) -> bool:
    return any(each in error.message.lower() for each in words)


def _is_no_mistake(error: ApiError) -> bool:
    if error.status == TOO_MANY_REQUESTS:
        raise error
    return any(each in error.message for each in NO_MISTAKE)


def pod_of(workload: Object) -> Object:
    """A pod as its controller would make it, naming it: a policy may refuse pods without one."""
    metadata, template = workload["metadata"], copy.deepcopy(workload["spec"]["template"])
    owner = {
        "apiVersion": workload["apiVersion"],
        "kind": "ReplicaSet" if workload["kind"] == "Deployment" else workload["kind"],
        "name": metadata["name"],
        "uid": metadata.get("uid") or NOBODYS_UID,
        "controller": True,
    }
    own = {
        "generateName": f"{metadata['name']}-",
        "namespace": metadata["namespace"],
        "ownerReferences": [owner],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **own},
        "spec": template["spec"],
    }
