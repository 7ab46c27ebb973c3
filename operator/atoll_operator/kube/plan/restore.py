"""A new job that takes up what another one has kept: `spec.restore.fromJob`.

The state of a run lies in the volumes of its shards, in a folder that is named by the UID of the
job that began the run. The claims of these volumes outlive their job (`reclaim: Retain`), and each
carries an annotation (`Annotation.STATE`) that says in which folder the state lies, under which
job's name the run began (the name is part of the run hash), and the run hash.

A job that restores gets these claims, this folder and this name in its run file, and has no claims
of its own; for everything else it is a job like any other. What it restores must fit: the run hash
is compared before anything is made, and once more by each shard, which compares it with its log.

As long as the former job could still write to its volumes, it is not restored: it must be deleted
or Failed. That is asked only of a job that has not begun, so that what becomes of the former job
later is no reason to stop.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll_operator.api.runfile import run_file
from atoll_operator.api.spec import Job, Restored
from atoll_operator.api.status import Status
from atoll_operator.kube.names import Annotation, shard_name
from atoll_operator.kube.observation import Object
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

FIELD = "spec.restore.fromJob"


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What is there of the job that is named: its object, None when it is deleted; its claims."""

    job: Object | None = None
    claims: Sequence[Object] = ()


def named(raw: Object) -> str:
    """Name of the job whose state is taken up; empty: none. The manifest may be wrong."""
    found: object = raw.get("spec")
    for key in ("restore", "fromJob", "name"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def restored(job: Job, status: Status, former: Former) -> Job:
    """The job with what it restores; unchanged when it restores nothing.

    `status` is the job's own. Raises SpecError: why it cannot be restored, and the remedy.
    """
    if job.spec.restore is None:
        return job
    name = job.spec.restore.from_job.name
    begun = status.start_time is not None
    if former.job is not None and not begun:
        _must_be_over(name, former.job)
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
    """The annotation of a job's claims; `uid` is the job's."""
    folder = job.restored.folder if job.restored else uid
    state = {"folder": folder, "job": job.run_name, "hash": run_file(job).hash}
    return json.dumps(state, sort_keys=True)


def _noted(claim: Object) -> Mapping[str, str]:
    """What a claim's annotation says; empty: an earlier version has made it."""
    annotations = claim["metadata"].get("annotations") or {}
    found: Mapping[str, str] = json.loads(annotations.get(Annotation.STATE) or "{}")
    return found


def _must_be_over(name: str, former: Object) -> None:
    status = Status.read(former.get("status"))
    if status.true_condition("Complete") is not None:
        problem = f"the job {name} is Complete: there is nothing to carry on"
        raise SpecError(FIELD, problem, "take its model from its status.exportURL")
    if status.true_condition("Failed") is None:
        problem = f"the job {name} still exists and has not failed"
        raise SpecError(FIELD, problem, f"delete it (kubectl delete dtj {name}); its claims stay")


def _state(job: Job, claim: Object) -> Restored:
    """Where the state lies, as the first shard's claim says."""
    assert job.spec.restore is not None
    given, noted = job.spec.restore.from_job, _noted(claim)
    known = noted if given.uid in ("", noted.get("folder")) else {}
    of_label = (claim["metadata"].get("labels") or {}).get(Label.JOB_UID, "")
    folder = known.get("folder") or given.uid or ("" if of_label == job.uid else of_label)
    if not folder or folder == job.uid:
        raise SpecError(
            f"{FIELD}.uid",
            f"the claim {claim['metadata']['name']} does not say which job's state it holds",
            "give the UID of that job, which is in its status.exportURL and names a folder of the"
            " volume",
        )
    return Restored(folder=folder, run_name=known.get("job") or given.name, claims_of=given.name)


def _must_fit(job: Job, claims: Sequence[Object]) -> None:
    """Compare the run hash with those of the claims, where they say one for this folder."""
    file = run_file(job)
    assert job.restored is not None
    for claim in claims:
        noted = _noted(claim)
        kept = noted.get("hash", "") if noted.get("folder") == job.restored.folder else ""
        if kept and not file.accepts(kept):
            raise SpecError(
                FIELD,
                f"the run that was kept has the run hash {kept}, this job has {file.hash}",
                "give spec.sync, spec.seed and spec.syncer.shards the values of that job",
            )
