"""What a manifest may say but this version cannot do yet: it is refused where it is set.

A field without an effect must not pass in silence. The fields stay in the CRD, so that manifests
keep their shape once they work, and their descriptions say "not supported yet".
"""

import re
from typing import Final

from atoll_operator.api.launching import has_launcher
from atoll_operator.api.pods import EnvVar
from atoll_operator.api.spec import Job
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun

OF_EVERY_POD = {"name", "image", "imagePullPolicy", "resources", "ports", "volumeMounts"}
BUILT_IN = "bytegpt"  # in the commands of the built-in model
OPTION: Final = re.compile(
    r"(?<![\w-])--(standalone|nnodes)(?:[= ](\S+))?(?![\w-])"
)  # of launchers
NUMBER: Final = re.compile(r"(?:\d+:)?(\d+)")  # of hosts, or MIN:MAX
KINDS: Final = frozenset({"auto", "cpu", "gpu", "xpu"})  # in place of a number of processes


def nowhere(job: Job) -> SpecError | None:
    """What neither executor can do; None when there is nothing of that kind."""
    return processes_that_never_meet(job)


def on_this_machine(job: Job) -> SpecError | None:
    """What `atoll run` cannot do for this job; None when it can run it."""
    if job.spec.restore is None:
        return nowhere(job) or evaluator_of_another_model(job)
    remedy = "remove it, and use `atoll run DIR --resume` with the folder of that run"
    return SpecError("spec.restore", "is NotSupported by atoll run", remedy)


def processes_that_never_meet(job: Job) -> SpecError | None:
    """That a learner's launcher is told of other hosts or processes than the learner has.

    Its hosts would wait for one that never comes, or each of them for itself be the learner.
    """
    template = job.spec.learner.template.container
    places = {"spec.learner.template": (template.command, template.args, template.env)}
    for region in job.spec.regions:
        own = region.pod_overrides
        words = (own.command or template.command, own.args or template.args, own.env)
        places[f"spec.regions[{region.name}].podOverrides"] = words
    return next(
        (
            SpecError(field, *found)
            for field, (command, args, env) in places.items()
            if (found := _other_hosts(command, args, job.spec.learner.hosts))
            or (found := _other_numbers(env, job.spec.learner.hosts))
        ),
        None,
    )


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
    template = job.spec.learner.template.container
    commands = [template.command, *(each.pod_overrides.command for each in job.spec.regions)]
    arguments = [template.args, *(each.pod_overrides.args for each in job.spec.regions)]
    words = " ".join(word for each in (*commands, *arguments) for word in each)
    if not any(commands) or BUILT_IN in words:
        return None
    return SpecError(
        "spec.evaluator.template",
        "has no command, so it measures the built-in model, which the learners do not train",
        "give the evaluator's container a command of its own, or remove spec.evaluator",
    )


def on_a_cluster(job: Job) -> SpecError | None:
    """What the operator cannot do for this job; None when it can run it."""
    found = nowhere(job)
    if found is not None:
        return found
    spec = job.spec
    if spec.export_url and not spec.export_url.startswith("file:///"):
        remedy = "use file:///FOLDER, a folder that spec.syncer.template mounts"
        return _not_yet("spec.export.url", remedy)
    if not spec.export_url and spec.syncer.shards > 1:
        problem = "is missing: several shards need a folder that they share"
        remedy = "give file:///FOLDER, a folder that spec.syncer.template mounts"
        return SpecError("spec.export.url" if spec.export else "spec.export", problem, remedy)
    return None


def without_effect_here(job: Job) -> list[str]:
    """What `atoll run` leaves to clusters, one line for each field.

    Nothing is said of what every pod needs and no process does, such as an image.
    """
    spec = job.spec
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
        if "nodes" in region.model_fields_set:
            lines.append(f"spec.regions[{region.name}].nodes is for clusters only")
    whole = {
        "spec.suspend": spec.suspend,
        "spec.managedBy": spec.managed_by is not None,
        "spec.learner.topologyKey": bool(spec.learner.topology_key),
        "spec.syncer.storage": "storage" in spec.syncer.model_fields_set,
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


def _not_yet(field: str, remedy: str) -> SpecError:
    return SpecError(field, "is not supported yet", remedy)
