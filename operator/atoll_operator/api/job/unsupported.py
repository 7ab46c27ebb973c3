"""What a manifest may say and an executor cannot do: it is refused, so that no field is in vain."""

import re
from typing import Final

from atoll_operator.api.job.launching import has_launcher
from atoll_operator.api.job.pod_fields import Container, EnvVar, PodOverrides
from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.syncer_fields import StorageType
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun

OF_EVERY_POD = {"name", "image", "imagePullPolicy", "resources", "ports", "volumeMounts"}
BUILT_IN = "bytegpt"  # in the commands of the built-in model
# Of launchers.
OPTION: Final = re.compile(r"(?<![\w-])--(standalone|nnodes)(?:[= ](\S+))?(?![\w-])")
NUMBER: Final = re.compile(r"(?:\d+:)?(\d+)")  # of hosts, or MIN:MAX
KINDS: Final = frozenset({"auto", "cpu", "gpu", "xpu"})  # in place of a number of processes


def on_this_machine(job: Job) -> SpecError | None:
    if job.spec.restore is None:
        return nowhere(job) or evaluator_of_another_model(job)
    remedy = "remove it, and use `atoll run DIR --resume` with the folder of that run"
    return SpecError("spec.restore", "is NotSupported by atoll run", remedy)


def nowhere(job: Job) -> SpecError | None:
    """What neither executor can do: a learner's launcher has options of other hosts or processes.

    Its hosts would wait for one that never comes, or each of them for itself be the learner.
    """
    template, hosts = job.spec.learner.template.container, job.spec.learner.hosts
    places = {"spec.learner.template": (template.command, template.args, template.env)}
    for region in job.spec.regions:
        own = region.pod_overrides
        words = (own.command or template.command, own.args or template.args, own.env)
        places[f"spec.regions[{region.name}].podOverrides"] = words
    for field, (command, args, env) in places.items():
        if found := _other_hosts(command, args, hosts) or _other_numbers(env, hosts):
            return SpecError(field, *found)
    return None


def _other_hosts(command: list[str], args: list[str], hosts: int) -> tuple[str, str] | None:
    if not has_launcher(command, args):
        return None
    of_launcher = " ".join((*command, *args)).partition(".py")[0]
    for option, value in OPTION.findall(of_launcher):
        alone = option == "standalone" and hosts > 1
        if alone or (option == "nnodes" and _differs(value, hosts)):
            given = f"--{option} {value}" if option == "nnodes" else f"--{option}"
            remedy = f"leave --{option} out: the launcher finds in PET_* all that it needs"
            return f"its command has {given}, and spec.learner.hosts is {hosts}", remedy
    return None


def _other_numbers(env: list[EnvVar], hosts: int) -> tuple[str, str] | None:
    given = {each.name: each.value for each in env}
    if _differs(nodes := given.get(Torchrun.NODES, ""), hosts):
        problem = f"{Torchrun.NODES} in its env is {nodes}, and spec.learner.hosts is {hosts}"
        return problem, "remove it: spec.learner.hosts and hostsMin set it"
    number = given.get(Torchrun.PROCESSES, "")
    if number and not (number in KINDS or "$" in number or (number.isdecimal() and int(number))):
        problem = f"{Torchrun.PROCESSES} in its env is {number!r}"
        return problem, "give the number of processes of each host, 1 or more"
    return None


def _differs(value: str, hosts: int) -> bool:
    number = NUMBER.fullmatch(value)
    return number is not None and int(number[1]) != hosts


def evaluator_of_another_model(job: Job) -> SpecError | None:
    """That the built-in evaluator cannot measure what the learners train; None if it can.

    The operator does not refuse it: the evaluator ends with its reason, and hurts nobody.
    """
    evaluator = job.spec.evaluator
    if evaluator is None or evaluator.template.container.command:
        return None
    places: list[Container | PodOverrides] = [job.spec.learner.template.container]
    places += [region.pod_overrides for region in job.spec.regions]
    words = " ".join(word for each in places for word in (*each.command, *each.args))
    if not any(each.command for each in places) or BUILT_IN in words:
        return None
    return SpecError(
        "spec.evaluator.template",
        "has no command, so it measures the built-in model, which the learners do not train",
        "give the evaluator's container a command of its own, or remove spec.evaluator",
    )


def on_a_cluster(job: Job) -> SpecError | None:
    if found := nowhere(job):
        return found
    spec = job.spec
    if spec.syncer.standby and not spec.syncer.storage.is_shared:
        problem = "needs storage that two pods of a shard reach"
        remedy = f"use spec.syncer.storage.type {StorageType.OBJECT_STORE}, or leave it out"
        return SpecError("spec.syncer.standby", problem, remedy)
    if not (spec.export_url or spec.syncer.storage.url) and spec.syncer.shards > 1:
        problem = "is missing: several shards need a folder that they share"
        remedy = "give file:///FOLDER, a folder that spec.syncer.template mounts, or a bucket's URL"
        return SpecError("spec.export.url" if spec.export else "spec.export", problem, remedy)
    given = spec.checkpoint
    if not given.url and (given.every_steps is not None or given.record is not None):
        problem = "is missing: checkpoints and records need a place that every shard reaches"
        remedy = "give file:///FOLDER, a folder that spec.syncer.template mounts, or a bucket's URL"
        return SpecError("spec.checkpoint.url", problem, remedy)
    return None


def without_effect_here(job: Job) -> list[str]:
    """What `atoll run` leaves to clusters; not what every pod needs and no process does."""
    spec, storage = job.spec, job.spec.syncer.storage
    lines = []
    given = sorted({*(spec.learner.template.container.model_extra or {})} - OF_EVERY_POD)
    if given:
        lines.append(f"spec.learner.template: {', '.join(given)} is for clusters only")
    for region in spec.regions:
        own = region.pod_overrides
        here = {"command", "args", "env", "image", "resources"}
        given = sorted(own.model_dump(by_alias=True, exclude_unset=True, exclude=here))
        if given:
            where = f"spec.regions[{region.name}].podOverrides"
            lines.append(f"{where}: {', '.join(given)} is for clusters only")
        if "placement" in region.model_fields_set:
            lines.append(f"spec.regions[{region.name}].placement is for clusters only")
    whole = {
        "spec.managedBy": spec.managed_by is not None,
        "spec.learner.topologyKey": bool(spec.learner.topology_key),
        "spec.syncer.storage": "storage" in spec.syncer.model_fields_set and not storage.url,
        "spec.syncer.storage.secret": bool(storage.secret),
        "spec.syncer.endpoints": bool(spec.syncer.endpoints),
        "spec.syncer.expose": "expose" in spec.syncer.model_fields_set,
        "spec.syncer.tls": "tls" in spec.syncer.model_fields_set,
        "spec.syncer.template": "template" in spec.syncer.model_fields_set,
        "spec.failure": "failure" in spec.model_fields_set,
        "spec.export.url": bool(spec.export_url),
        "spec.ttlSecondsAfterFinished": spec.ttl_seconds_after_finished is not None,
        "spec.activeDeadlineSeconds": spec.active_deadline_seconds is not None,
    }
    return lines + [f"{field} is for clusters only" for field, given in whole.items() if given]
