"""What becomes of a job's children in one pass: applied, deleted, or refused and tried again.

A child is applied when it is not there, or differs in a field from what would be applied (`drift`).
When somebody else has changed it that is a *revert*: told in an Event, and of one child done once
in REVERT_SECONDS, so that two controllers never write in turns without end. A live child is applied
with its UID, so that an object that has taken its place is never hit.

Of a job without any pod nothing is applied while a certificate is missing that cannot be made in
this pass: no pod could start, and each would hold its node's accelerators. The API server tries a
new template before it is applied. Of a new job nothing is made while one is refused; of a
job that runs, that workload stays as it is, and the others take their edits.

Drift compares values: every field that would be applied is in the live object with that value;
other fields are others'. What the API server stores may look different and be equal all the same:

    absent          nothing, as null, "", false, 0, [] and {} are left out of many fields;
                    an `emptyDir: {}` is kept, and tells one source of a volume from another
    lists of maps   compared by the key by which server-side apply merges them, in any order;
                    elements that only the live list has are others' (LIST_KEYS)
    other lists     as a whole: the same number of elements, each as a map is compared
    selectors       as a whole: one more label in a Service's selector makes it select nothing
    quantities      by their value: "1000m" is 1
    null            says nothing: the field is left to the cluster

What else differs in the answer to an apply is `settled`: it is no drift as long as the live object
has that same value.

Names of children hold no hash, so an object of others may have one. Ours (`objects.is_of`) is what
the job controls, and what carries its UID as a label and has no controller: then our owner
reference is set again. A claim outlives its job on purpose, so one without a controller belongs to
every job of the name that its label says. Anything else is never applied to, adopted or deleted;
the condition Accepted names it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_operator.api.job.spec import KIND
from atoll_operator.api.status.conditions import PhaseKind
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, Annotation, JobOwner
from atoll_operator.kube.observed.objects import (
    controller,
    is_of,
    is_spoilt,
    key_of,
    quantity,
    rfc3339,
)
from atoll_operator.kube.observed.observation import (
    WORKLOADS,
    ChildRefusal,
    Object,
    Observation,
    Raw,
)
from atoll_operator.kube.plan import accepted, actions, pods, restarts
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.actions import Changes, Deletion, Revert
from atoll_operator.kube.plan.children import JobChildren
from atoll_operator.kube.plan.replacements import exclusions
from atoll_operator.kube.plan.situation import Situation
from atoll_protos.names import Label

BY_NAME = ("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims",
           "claims", "schedulingGates")  # fmt: skip
LIST_KEYS: Mapping[str, tuple[str, ...]] = dict.fromkeys(BY_NAME, ("name",)) | {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
WHOLE = frozenset({"selector", "nodeSelector", "labelSelector", "nodeSelectorTerms"})
QUANTITIES = frozenset({"limits", "requests", "overhead", "sizeLimit", "divisor"})
KEPT_EMPTY = frozenset({"emptyDir"})
NOTHING: tuple[Any, ...] = (None, "", False, 0, [], {})

Settled = frozenset[tuple[str, str]]  # path and value of what the server writes in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A field whose live value is not the wanted one; `found` is None where it is absent."""

    path: str  # such as spec.template.spec.containers[learner].image
    wanted: Any
    found: Any

    @property
    def mark(self) -> tuple[str, str]:
        return self.path, repr(self.found)


def drift(
    wanted: Mapping[str, Any], live: Mapping[str, Any], settled: Settled = frozenset()
) -> tuple[Drift, ...]:
    """Every field of `wanted`, an object as it is applied, that an apply would mend in `live`."""
    found = _compare("", "", wanted, live, whole=False)
    return tuple(each for each in found if each.mark not in settled)


def _compare(path: str, key: str, wanted: Any, found: Any, *, whole: bool) -> Iterator[Drift]:
    """`key`: the field's name; `whole`: what only the live value has differs, too."""
    if wanted == found or (wanted is None and not whole):
        return
    if isinstance(wanted, Mapping) and (found is None or isinstance(found, Mapping)):
        if found is None and key in KEPT_EMPTY:
            yield Drift(path=path, wanted=wanted, found=None)
        there = found or {}
        others = [name for name in there if name not in wanted] if whole else []
        for name in (*wanted, *others):
            below, inside = f"{path}.{name}" if path else name, key in QUANTITIES
            of, within = key if inside else name, whole or name in WHOLE
            yield from _compare(below, of, wanted.get(name), there.get(name), whole=within)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        live = found if isinstance(found, list) else []
        keys = _keys(key, wanted)
        if keys and all(isinstance(item, Mapping) for item in (*wanted, *live)):
            by_mark = {_identity(each, keys): each for each in live}
            for mark, each in ((_identity(each, keys), each) for each in wanted):
                name = f"{path}[{','.join(mark)}]"
                if mark in by_mark:
                    yield from _compare(name, "", each, by_mark[mark], whole=whole)
                else:
                    yield Drift(path=name, wanted=each, found=None)
        elif len(wanted) != len(live):
            yield Drift(path=path, wanted=wanted, found=live or None)
        else:
            for number, (each, other) in enumerate(zip(wanted, live, strict=True)):
                yield from _compare(f"{path}[{number}]", "", each, other, whole=whole)
    elif not _equal(wanted, found, is_quantity=key in QUANTITIES):
        yield Drift(path=path, wanted=wanted, found=found)


def _keys(key: str, elements: Sequence[Any]) -> tuple[str, ...]:
    """By what the elements of a list are told apart; empty: the list is one value."""
    if key == "ports" and elements:  # of a container, else of a Service
        return ("containerPort" if "containerPort" in elements[0] else "port", "protocol")
    return LIST_KEYS.get(key, ())


def _identity(element: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(element.get(key, "TCP" if key == "protocol" else "")) for key in keys)


def _equal(wanted: Any, found: Any, *, is_quantity: bool) -> bool:
    if found is None or wanted is None:
        return (wanted or found) in NOTHING
    one, other = (quantity(wanted), quantity(found)) if is_quantity else (None, None)
    return bool(wanted == found or (one is not None and one == other))


NOT_WANTED = "the job no longer asks for it"
DIFFERENCES_MAX = 3  # that an Event names
VALUE_CHARACTERS_MAX = 60
TRIED = WORKLOADS | {"PersistentVolumeClaim"}  # kinds of what is tried before a job has anything
REFUSED_REASONS = ("TemplateRefused", "ChildrenRefused")  # of the condition Accepted
KEPT_MAX = 7_500  # children that are kept as they are wanted, of all jobs: some 10 kB each

Key = tuple[str, str]  # kind and name of a child
Compared = tuple[Object, Object | None, tuple[Drift, ...]]  # as wanted, as it is, what differs


def of_children(case: Situation) -> Changes:
    seen, phase = case.seen, case.phase
    if phase.kind is PhaseKind.REJECTED:
        return Changes()
    if phase.kind is PhaseKind.SUSPENDED and not seen.workloads:
        return _of_suspended(case)
    own = _own(case)
    found = compared(case, own)
    objects = [wanted for wanted, _, _ in found]
    held = restarts.held_shards(case, objects)
    changed, reverts = [], []
    for wanted, live, differs in found:
        if wanted["kind"] == "Deployment" and wanted["metadata"]["name"] in held:
            continue
        if live is None:
            changed.append(wanted)
        elif differs:
            metadata = {**wanted["metadata"], "uid": live["metadata"]["uid"]}
            changed.append({**wanted, "metadata": metadata})
            # It is a revert when the last apply was of the very same object; and where a note
            # cannot be read, whose loss changes what is wanted.
            if _applied(live) == _applied(wanted) or is_spoilt(live):
                reverts.append(_revert(case, key_of(wanted), differs))
    refused = _refused(seen, changed)
    if not any(kind in WORKLOADS for kind, _ in own):
        return _of_new(case, changed, refused)
    if case.certificates.missing and not any(
        workload.replicas for workload in seen.workloads.values()
    ):
        return Changes(certificates=case.certificates, refused=refused)
    waiting = {(refusal.kind, refusal.name) for refusal in refused if refusal.wait_seconds > 0}
    put_off = {revert.key: seen.remembered.reverts.get(revert.key, 0.0) for revert in reverts}
    waiting |= {key for key, seconds in put_off.items() if seconds > 0}
    apply = tuple(each for each in changed if key_of(each) not in waiting)
    return Changes(
        certificates=case.certificates,
        check=tuple(each for each in apply if _has_new_template(each, seen)),
        apply=apply,
        reverts=tuple(revert for revert in reverts if revert.key not in waiting),
        prune=_pruned(case, own, objects),
        refused=refused,
        wait_seconds=min((each for each in put_off.values() if each > 0), default=None),
    )


def _of_suspended(case: Situation) -> Changes:
    """Of a job that was created suspended nothing is made, not even an empty StatefulSet.

    Its templates are tried all the same, once for each edit, so that a mistake shows before a queue
    lets the job go, and again by a restarted operator where the status tells of one.
    """
    seen = case.seen
    objects = [wanted for wanted, _, _ in compared(case, _own(case))]
    workloads = _to_try([obj for obj in objects if obj["kind"] in TRIED])
    refused = _refused(seen, workloads)
    edited = seen.status.observed_generation != seen.raw["metadata"]["generation"]
    forgotten = not refused and any(
        condition.reason in REFUSED_REASONS for condition in seen.status.conditions or []
    )
    due = {(refusal.kind, refusal.name) for refusal in refused if refusal.wait_seconds <= 0}
    check = tuple(
        workload for workload in workloads if edited or forgotten or key_of(workload) in due
    )
    return Changes(check=check, partly=False, refused=refused)


def _of_new(
    case: Situation, changed: Sequence[Object], refused: tuple[ChildRefusal, ...]
) -> Changes:
    """All children of a job that has none that runs, or nothing while one that is tried is refused.

    A job whose template or volume is wrong leaves nothing behind, and its first status says so.
    """
    workloads = tuple(each for each in changed if each["kind"] in TRIED)
    waiting = {(refusal.kind, refusal.name) for refusal in refused if refusal.wait_seconds > 0}
    if any(key_of(workload) in waiting for workload in workloads):
        return Changes(refused=refused)
    work = case.certificates
    if work.missing:
        check = _to_try(workloads) if work.acts else ()
        return Changes(certificates=work, check=check, partly=False, refused=refused)
    apply = tuple(each for each in changed if key_of(each) not in waiting)
    check = _to_try(workloads)
    return Changes(certificates=work, check=check, partly=False, apply=apply, refused=refused)


def _to_try(workloads: Sequence[Object]) -> tuple[Object, ...]:
    return tuple(first for first, *_ in alike(workloads))


def alike(workloads: Iterable[Object]) -> list[tuple[Object, ...]]:
    """Group what the API server refuses together: sets of a region differ in their slot alone.

    So do the Deployments of a shard in their process.
    """
    found: dict[tuple[str, str], list[Object]] = {}
    for workload in workloads:
        labels = workload["metadata"]["labels"]
        same = key_of(workload)
        if Label.SLOT in labels:
            same = ("learners of", labels[Label.REGION])
        elif Label.SHARD in labels:
            same = (workload["kind"], labels[Label.SHARD])
        found.setdefault(same, []).append(workload)
    return [tuple(each) for each in found.values()]


def _has_new_template(child: Object, seen: Observation) -> bool:
    """Whether pods of another template are about to be made; lost nodes make no other one."""
    if child["kind"] not in WORKLOADS:
        return False
    live = seen.workloads.get(child["metadata"]["name"])
    annotations = child["spec"]["template"]["metadata"]["annotations"]
    return live is None or live.template != annotations[Annotation.TEMPLATE]


def _own(case: Situation) -> dict[Key, Object]:
    seen, name = case.seen, case.job.name
    return {key_of(child): child for child in seen.children if is_of(child, name, seen.uid)}


_KEPT: dict[str, tuple[tuple[object, ...], list[Compared]]] = {}
"""By a job's UID: the last comparison, and all that it was made from."""


def compared(case: Situation, own: Mapping[Key, Object]) -> list[Compared]:
    """`compare`, or what it gave the last time for the same: it is two thirds of a pass.

    Neither what is given nor the result may be changed. An input that is not in `given` would make
    edits go unseen: every test of a pass compares again (`conftest`).
    """
    seen, uid = case.seen, case.seen.uid
    running = phases.running(
        case.phase,
        case.before,
        keeps_shards=_keeps_shards(case),
        holds_learners=case.hold is not None,
    )
    excluded = exclusions(
        case.job.name,
        seen.workloads,
        case.placement,
        seen.pods,
        now=case.now,
        known=seen.nodes is not None,
    )
    bare = JobChildren(
        job=case.job,
        owner=JobOwner.of(seen.raw, case.job.name),
        settings=case.settings,
        manifest=seen.accepted,
        running=running,
        exclusions=excluded,
    )
    given = (bare, seen.raw["metadata"].get("generation", 1), own, seen.remembered.settled)
    known = _KEPT.pop(uid, None)  # jobs are planned in several threads: each step is atomic
    found = known[1] if known and known[0] == given else compare(*given)
    _KEPT[uid] = (given, found)
    for other in list(_KEPT)[:-1]:  # first that of the job whose last pass was the longest ago
        if sum(len(kept) for _, kept in list(_KEPT.values())) <= KEPT_MAX:
            break
        _KEPT.pop(other, None)
    return found


def compare(
    bare: JobChildren,
    generation: int,
    own: Mapping[Key, Object],
    settled: Mapping[tuple[str, str, str], Settled],
) -> list[Compared]:
    """All children as they are wanted, beside what there is of them, and how that differs."""
    renderings = accepted.renderings_of(
        bare.job,
        generation,
        bare.manifest,
        own.values(),
        bare.running,
        home=bare.settings.serves(bare.job.spec.syncer_region),
    )
    found: list[Compared] = []
    for obj in replace(bare, renderings=renderings).objects():
        key, live = key_of(obj), own.get(key_of(obj))
        if live is None:
            found.append((obj, None, ()))
            continue
        wanted = _as_grown(obj, live)
        known = settled.get((*key, _applied(wanted) or ""), frozenset())
        found.append((wanted, live, drift(wanted, live, known)))
    return found


def _revert(case: Situation, key: Key, differs: Sequence[Drift]) -> Revert:
    text, subject = _in_words(differs), " ".join(key)
    message = f"{subject} was changed: {text}; edit the job, not what it owns"
    event = actions.warning(case.seen.raw, actions.REVERTED, subject, message, rfc3339(case.now))
    return Revert(key=key, text=text, event=event)


def _in_words(found: Sequence[Drift]) -> str:
    """`spec.replicas was 0 and is 2 again`, of the first few differences; not of their hash."""
    hashed = f".{Annotation.APPLIED}"
    found = [difference for difference in found if not difference.path.endswith(hashed)] or found
    said = [
        f"{each.path} was {_short(each.found)} and is {_short(each.wanted)} again"
        for each in found[:DIFFERENCES_MAX]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


def _as_grown(wanted: Object, live: Object) -> Object:
    """Keep the size of a larger claim: no volume shrinks, whoever has enlarged it.

    A size that was asked for and has not come can be taken back to any size above what is there.
    """
    if wanted["kind"] != "PersistentVolumeClaim":
        return wanted
    spec = wanted["spec"]
    has = live.get("spec", {}).get("resources", {}).get("requests", {}).get("storage")
    asked, given = quantity(spec["resources"]["requests"]["storage"]), quantity(has)
    is_there = quantity((live.get("status", {}).get("capacity") or {}).get("storage"))
    if asked is None or given is None or given <= asked:
        return wanted
    if is_there is not None and is_there < asked:
        return wanted
    return {**wanted, "spec": {**spec, "resources": {"requests": {"storage": has}}}}


def _refused(seen: Observation, changed: Sequence[Object]) -> tuple[ChildRefusal, ...]:
    """Return the children that the API server refused as wanted now; an edit forgets it."""
    wanted = {key_of(child): child for child in changed}
    found = []
    for refusal in seen.remembered.refused:
        child = wanted.get((refusal.kind, refusal.name))
        if child is not None and _applied(child) == refusal.applied:
            origin = f" (from {_origin(child)})" if refusal.of_template else ""
            found.append(replace(refusal, message=f"{refusal.message}{origin}"))
    return tuple(found)


def _origin(workload: Object) -> str:
    labels = workload["metadata"]["labels"]
    role, region = labels[Label.ROLE], labels.get(Label.REGION, "")
    if role == LEARNER_ROLE:
        return f"spec.learner.template and podOverrides of the region {region}"
    return f"spec.{'syncer' if role == SHARD_ROLE else 'evaluator'}.template"


def _keeps_shards(case: Situation) -> bool:
    """Whether the shards of a job that is suspended or over stay.

    Those of a suspended one wait for the learners' last reports, and stay where Ephemeral storage
    holds a run: their pods are its only copy. Those of a job that is over tell the operators of
    other clusters so, if there are some.
    """
    seen, job, settings = case.seen, case.job, case.settings
    exist = any(
        live.kind == "Deployment" and live.replicas and "-syncer-" in name
        for name, live in seen.workloads.items()
    )
    if not exist:
        return False
    if case.phase.kind.over:
        has_others = phases.has_other_clusters(job, settings)
        return has_others and phases.lingers(seen.status, case.now)
    if case.phase.kind is not PhaseKind.SUSPENDED:
        return False
    if any(pod.role == LEARNER_ROLE for pod in seen.pods):
        return True
    ephemeral = not job.spec.syncer.storage.outlives_pods
    return (ephemeral and restarts.has_run(seen)) or phases.awaits_others(
        job, settings, seen.registrar, seen.remembered.suspended_seconds
    )


def _applied(child: Object) -> str | None:
    annotations = child["metadata"].get("annotations") or {}
    found: str | None = annotations.get(Annotation.APPLIED)
    return found


def _pruned(
    case: Situation, own: Mapping[Key, Object], objects: Sequence[Object]
) -> tuple[Deletion, ...]:
    """Find what the job no longer asks for; never pods, claims, or what pods use or will use.

    Pods use run files, Services by which they dial, and service accounts: a cloud's identity is
    taken from them all the time. A workload whose new template is refused makes pods of its present
    one. What this operator has not made stays too: `kubectl expose` gives the labels of a pod to a
    user's Service.
    """
    seen = case.seen
    used = {key_of(obj) for obj in objects}
    for pod in (
        *(child for child in seen.children if child["kind"] == "Pod"),
        *(
            obj["spec"]["template"]
            for obj in (*objects, *(own[key] for key in own.keys() & used))
            if "template" in (obj.get("spec") or {})
        ),
    ):
        spec = pod.get("spec") or {}
        used.add(("ServiceAccount", spec.get("serviceAccountName") or ""))
        for volume in spec.get("volumes") or []:
            used.add(("ConfigMap", (volume.get("configMap") or {}).get("name") or ""))
        used |= {("Service", name) for name in pods.dialled(spec)}
    found = []
    for (kind, name), each in own.items():
        if kind in ("Pod", "PersistentVolumeClaim") or (kind, name) in used:
            continue
        if "deletionTimestamp" in each["metadata"]:
            continue
        if controller(each) is None and _applied(each) is None:
            continue
        uid = each["metadata"]["uid"]
        found.append(Deletion(kind=kind, name=name, uid=uid, reason=NOT_WANTED))
    return tuple(found)


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
