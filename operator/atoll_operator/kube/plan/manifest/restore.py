"""A new job that takes up what another one has kept: `spec.restore.fromJob`.

The state of a run lies in the volumes of its shards, in a folder named by the UID of the job that
began the run. Each claim carries an annotation (`Annotation.STATE`) with this folder, the name
under which the run began (it is part of the run hash), and the run hash; what an earlier job of the
volume noted is kept behind it, the latest first. The run hash is compared before anything is made.

As long as the former job could still write to its volumes, it is not restored. That is asked only
of a job that has not begun, so what becomes of the former job later is no reason to stop.
"""

import json
from collections.abc import Mapping, Sequence

from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import Job, Restored
from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.names import Annotation, shard_name
from atoll_operator.kube.observed import notes
from atoll_operator.kube.observed.observation import Former, Object
from atoll_protos.errors import SpecError

FIELD = "spec.restore.fromJob"
FORMER_MAX = 20  # states of former jobs that an annotation keeps

State = Mapping[str, str]  # folder, job and hash


def restored(job: Job, status: Status, former: Former) -> Job:
    """The job with what it restores, if anything; `status` is its own. Raises SpecError."""
    if job.spec.restore is None:
        return job
    name = job.spec.restore.from_job.name
    begun = status.start_time is not None
    if former.job is not None and not begun:
        _must_be_over(name, former.job)
    if not begun:
        _must_be_first(name, former.heirs)
    names = [shard_name(name, number) for number in range(job.spec.syncer.shards)]
    there = {
        each["metadata"]["name"]: each
        for each in former.claims
        if begun or "deletionTimestamp" not in each["metadata"]
    }
    missing = [each for each in names if each not in there]
    if missing:
        raise SpecError(
            FIELD,
            f"the volume claims {', '.join(missing)} of the job {name} are not there",
            "name a job with syncer.storage.reclaim Retain and with as many shards",
        )
    found = job.model_copy(update={"restored": _state(job, there[names[0]])})
    _must_fit(found, [there[each] for each in names])
    return found


def of_claim(job: Job, uid: str) -> str:
    folder = job.restored.folder if job.restored else uid
    state = {"folder": folder, "job": job.run_name, "hash": run_file(job).hash}
    return json.dumps(state, sort_keys=True)


def with_former(wanted: Object, live: Object) -> Object:
    """A claim as it is applied, with the states that its annotation has told of until now."""
    if wanted["kind"] != "PersistentVolumeClaim":
        return wanted
    annotations = wanted["metadata"]["annotations"]
    new = json.loads(annotations[Annotation.STATE])
    former = [each for each in _noted(live) if each["folder"] != new["folder"]]
    if not former:
        return wanted
    text = json.dumps({**new, "former": former[:FORMER_MAX]}, sort_keys=True)
    metadata = {**wanted["metadata"], "annotations": {**annotations, Annotation.STATE: text}}
    return {**wanted, "metadata": metadata}


def _noted(claim: Object) -> Sequence[State]:
    """The states of which a claim's annotation tells, the latest first; none: it was spoilt."""
    annotations = claim["metadata"].get("annotations") or {}
    return notes.states(annotations.get(Annotation.STATE))


def _must_be_over(name: str, former: Object) -> None:
    status = Status.read(former.get("status"))
    if status.true_condition("Complete") is not None:
        problem = f"the job {name} is Complete: there is nothing to carry on"
        raise SpecError(FIELD, problem, "take its model from its status.exportURL")
    if status.true_condition("Failed") is None:
        problem = f"the job {name} still exists and has not failed"
        raise SpecError(FIELD, problem, f"delete it (kubectl delete dtj {name}); its claims stay")


def _must_be_first(name: str, heirs: Sequence[Object]) -> None:
    """Of several jobs that restore one, that which has begun keeps it until it is over."""
    for each in heirs:
        status = Status.read(each.get("status"))
        over = status.true_condition("Complete") or status.true_condition("Failed")
        if status.start_time is not None and over is None:
            other = each["metadata"]["name"]
            problem = f"the job {other} carries on the run of {name} already"
            raise SpecError(FIELD, problem, f"delete it (kubectl delete dtj {other})")


def _state(job: Job, claim: Object) -> Restored:
    assert job.spec.restore is not None
    given, noted, name = job.spec.restore.from_job, _noted(claim), claim["metadata"]["name"]
    uids = [each["folder"] for each in noted if each["folder"] != job.uid]
    folder = given.uid or next(iter(uids), "")
    if folder not in uids:
        raise SpecError(
            f"{FIELD}.uid",
            f"the claim {name} tells of no state of a job with this UID",
            f"give one of {', '.join(uids)}" if uids else "name a job that has trained",
        )
    run_name = next((each["job"] for each in noted if each["folder"] == folder), given.name)
    return Restored(folder=folder, run_name=run_name, claims_of=given.name)


def _must_fit(job: Job, claims: Sequence[Object]) -> None:
    file = run_file(job)
    assert job.restored is not None
    for state in (each for claim in claims for each in _noted(claim)):
        if state["folder"] == job.restored.folder and state["hash"] != file.hash:
            raise SpecError(
                FIELD,
                f"the run that was kept has the run hash {state['hash']}, this job has {file.hash}",
                "give spec.sync, spec.seed and spec.syncer.shards the values of that job",
            )
