"""Whose an object is that has the name of a child: this job's, or another's, which is left alone.

Names of children hold no hash, so a user's object, another job's or a former job's may have one.
Ours (`objects.is_of`) is what the job controls, and what carries the job's UID as a label and has
no controller: somebody has taken our owner reference away, and it is set again. A claim outlives
its job on purpose, so one without a controller belongs to every job of the name that its label
says. Anything else is never applied to, adopted or deleted; the condition Accepted names it.
"""

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.observed.objects import controller, is_of
from atoll_operator.kube.observed.observation import Raw
from atoll_protos.names import Label

KINDS = "statefulset,deployment,service,configmap,serviceaccount,poddisruptionbudget"


def obstacle(found: Raw, child: Raw) -> str:
    """Why a child cannot be made at the path of `found`, and the remedy; empty: it is ours."""
    metadata, labels = found["metadata"], child["metadata"]["labels"]
    kind, name, namespace = child["kind"], metadata["name"], metadata.get("namespace", "")
    job, uid = labels[Label.JOB], labels[Label.JOB_UID]
    if is_of({**found, "kind": kind}, job, uid):
        return ""
    if "deletionTimestamp" in metadata:
        return "another object of this name is being deleted; the job's is made when it is gone"
    delete = f"kubectl delete {kind.lower()} {name} -n {namespace}"
    owner = controller(found)
    if owner is not None and (owner.get("kind"), owner.get("name")) == (KIND, job):
        return (
            "a former job of this name made it, and Kubernetes removes it soon; if it stays,"
            f" `{delete}`"
        )
    if owner is not None:
        whose = f"belongs to {owner.get('kind')} {owner.get('name')}"
    elif (metadata.get("labels") or {}).get(Label.JOB) == job:
        left = (metadata.get("labels") or {}).get(Label.JOB_UID)
        if left is not None:  # everything that it has left, by one command
            delete = f"kubectl delete {KINDS} -n {namespace} -l {Label.JOB_UID}={left}"
        return f"a former job of this name has left it, and it is not taken over; `{delete}`"
    else:
        whose = "was not made by this job"
    remedy = "rename this job or its region, or delete that object"
    if kind == "ServiceAccount":
        remedy = "name it in the template's serviceAccountName to use it, or delete it"
    return f"the object of this name {whose} and is left alone; {remedy}"
