"""A manifest becomes a `Job`: YAML, `--set` changes, preset, models, rules (`spec`).

A learner of several processes or hosts runs under `atoll-worker launch -- COMMAND`. A command that
is a launcher itself stays as it is: two of them would each start all processes.
"""

import copy
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pydantic
import yaml

from atoll_operator.api.job import field_rules, sync_fields
from atoll_operator.api.job.fields import (
    Container,
    EnvVar,
    Model,
    PodOverrides,
    fields_at,
    meant,
)
from atoll_operator.api.job.spec import API_VERSION, KIND, Job, Spec
from atoll_protos.environment import Torchrun
from atoll_protos.errors import SpecError

VALUES_MAX: Final = 1_000_000  # each as often as an alias names it
# PyYAML's own, and what comes out of its constructors: of `!!int ""`, or the date 2026-99-99.
ERRORS: Final = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError)


def yaml_documents(text: str, name: str) -> list[Any]:
    """Those that are not empty; errors call the text `name`. Raises SpecError."""
    try:
        found = [document for document in yaml.safe_load_all(text) if document is not None]
        count = _count(found, {})
    except RecursionError as error:
        problem = "is nested too deep, or holds itself"
        raise SpecError(name, problem, "fix the file") from error
    except ERRORS as error:
        raise SpecError(name, f"is not YAML ({error})", "fix the file") from error
    if count > VALUES_MAX:
        problem = f"has {count:,} values with those that its aliases repeat"
        raise SpecError(name, problem, f"give at most {VALUES_MAX:,}")
    return found


def yaml_document(text: str, name: str) -> Any:
    """Return the only document; None: there is none. Raises SpecError."""
    found = yaml_documents(text, name)
    if len(found) > 1:
        raise SpecError(name, f"holds {len(found)} documents", "write one")
    return found[0] if found else None


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values are in it, itself with them; one that holds itself is a RecursionError."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in known:
        inside = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inside)
    return known[id(value)]


UNKNOWN = "extra_forbidden"
MISSING = "missing"
SECURITY_CONTEXTS = ("securityContext", "containerSecurityContext")
MAPPING = ("must be a mapping", "give it named fields")
OTHER = ("is not valid", "see the field in docs/spec.md")
WORDS = {  # pydantic's kind of error -> problem, remedy; {names} are of the error's context
    "greater_than_equal": ("must be at least {ge}", "give {ge} or more"),
    "less_than_equal": ("must be at most {le}", "give {le} or less"),
    "enum": ("must be {expected}", "use one of these"),
    "string_type": ("must be a string", "write it in quotes"),
    "int_type": ("must be a whole number", "write it without quotes and decimals"),
    "number_or_auto": ("must be auto or a whole number from 1 to {most}", "write auto"),
    "offers_alone": ("must not be a format for offers alone", "use int4"),
    "float_type": ("must be a number", "write it in seconds, without a unit"),
    "bool_type": ("must be true or false", "write it without quotes"),
    "string_pattern_mismatch": ("must match {pattern}", "write it in this form"),
    "string_too_short": ("must have at least {min_length} characters", "make it longer"),
    "string_too_long": ("must have at most {max_length} characters", "make it shorter"),
    "too_long": ("must have at most {max_length} entries", "remove some"),
    "too_short": ("must have at least {min_length} entries", "add some"),
    "list_type": ("must be a list", "write it as a list"),
    "dict_type": MAPPING,
    "model_type": MAPPING,
}


def parse(text: str, changes: tuple[str, ...] = ()) -> Job:
    """Parse a manifest's text, with changes such as `spec.steps=100`; raises SpecError."""
    return from_object(document_in(text, changes))


def document_in(text: str, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the job's document in a manifest's text, with changes; raises SpecError.

    The file may hold other objects too, such as a claim that the job mounts, but only one job.
    """
    documents = yaml_documents(text, "manifest")
    jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    document = next(iter(jobs or documents), None)
    if len(jobs) > 1:
        raise SpecError("manifest", f"holds {len(jobs)} jobs", "write one job per file")
    if not isinstance(document, dict):
        raise SpecError("manifest", "must be a mapping", f"start it with apiVersion: {API_VERSION}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            problem = f"must be {expected}, got {document.get(field)!r}"
            raise SpecError(field, problem, f"write {field}: {expected}")
    _quote(document, dict(_change(document, change) for change in changes))
    return document


def from_object(document: Mapping[str, Any], *, stored: bool = False) -> Job:
    """Parse a manifest or an object of the API server; raises SpecError.

    `stored`: it comes from the API server. Then fields that this version does not know are those of
    another one, and are ignored; in a file they are mistakes.
    """
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise SpecError("metadata", MAPPING[0], MAPPING[1])
    name, uid = metadata.get("name"), str(metadata.get("uid") or "")
    if not isinstance(name, str) or not name:
        raise SpecError("metadata.name", "is missing", "add it")
    spec = _without_nulls(copy.deepcopy(document.get("spec")))
    if isinstance(spec, dict) and isinstance(sync := spec.setdefault("sync", {}), dict):
        sync_fields.fill(sync)  # else the models say what is wrong with it
    job = Job(name=name, spec=_validated(spec, stored=stored), uid=uid)
    field_rules.check(job)
    return job


def _validated(spec: Any, *, stored: bool) -> Spec:
    try:
        return Spec.model_validate(spec)
    except pydantic.ValidationError as error:
        unknown = [each["loc"] for each in error.errors() if each["type"] == UNKNOWN]
        if not (stored and unknown):
            raise first_error(error) from error
    for path in unknown:
        place = spec
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]
    return _validated(spec, stored=stored)


def _without_nulls(value: Any, key: str = "", *, template: bool = False) -> Any:
    """Leave out the nulls of pod templates, which mean "not given".

    A null inside of a security context stays: it says that the field is not to be filled in.
    """
    inside = template or key in ("template", "podOverrides")
    if isinstance(value, dict):
        drops = inside and key not in SECURITY_CONTEXTS
        kept = {name: each for name, each in value.items() if not (drops and each is None)}
        return {name: _without_nulls(each, name, template=inside) for name, each in kept.items()}
    if isinstance(value, list):
        return [_without_nulls(x, template=inside) for x in value if not (inside and x is None)]
    return value


def _change(document: dict[str, Any], change: str) -> tuple[str, "ManifestEntry"]:
    """Make a change; returns its field, as errors name it, and the entry that was set."""
    path, separator, value = change.partition("=")
    keys = path.split(".")
    if not separator or keys[0] not in ("spec", "metadata") or len(keys) == 1:
        problem = "must have the form spec.FIELD=VALUE"
        raise SpecError(f"--set {change}", problem, "write --set spec.steps=100")
    place: Any
    key: Any
    below: Any = document
    field = before = ""
    for name in keys:
        place, key = below, name
        if isinstance(place, list):
            key = _index(place, name, path)
            field += f"[{key}]"
        elif isinstance(place, dict):
            field += f".{name}" if field else name
            place.setdefault(name, {})
        else:
            remedy = f"set {before} as a whole, or change the manifest itself"
            raise SpecError(path, f"{before} has no named fields", remedy)
        below, before = place[key], name
    place[key] = yaml_document(value, path)
    return field, ManifestEntry(place, key, value)


def _index(entries: list[Any], name: str, path: str) -> int:
    """Of an entry by its name or number; `+NAME` adds one where there is none of that name."""
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if name.startswith("+"):
        name = name.removeprefix("+")
        if name not in names:
            entries.append({"name": name})
            return len(names)
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(entries):
        return int(name)
    known = ", ".join(str(each) for each in names if each)
    remedy = f"give a number below {len(entries)}" + (f", or a name: {known}" if known else "")
    raise SpecError(path, f"the list has no entry {name}", remedy)


class ManifestEntry(NamedTuple):
    """What a change has set: `place[key]`, from this text."""

    place: Any
    key: Any
    text: str


def _quote(document: dict[str, Any], changed: dict[str, ManifestEntry]) -> None:
    """Set numbers again as strings where a field wants one: a shell takes the quotes away."""
    while changed:
        try:
            from_object(document)
        except SpecError as error:
            entry = changed.pop(error.field, None)
            if entry is None or not error.problem.startswith(WORDS["string_type"][0]):
                return
            if type(entry.place[entry.key]) not in (int, float):
                return
            entry.place[entry.key] = entry.text
        else:
            return


def first_error(
    error: pydantic.ValidationError, field: str = "spec", model: type[Model] = Spec
) -> SpecError:
    """Return the first error of a document that does not fit; `field` is its own name."""
    first = error.errors()[0]
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}"
    if first["type"] == UNKNOWN:
        *path, name = first["loc"]
        return SpecError(field, "is unknown", meant(str(name), fields_at(model, path)))
    if first["type"] == MISSING:
        return SpecError(field, "is missing", "add it")
    problem, remedy = WORDS.get(first["type"], OTHER)
    context = first.get("ctx", {})
    said = f"{problem.format_map(context)}, got {reprlib.repr(first['input'])}"
    return SpecError(field, said, remedy.format_map(context))


LAUNCHER: Final = ("atoll-worker", "launch")
MODULE: Final = ("-m", "atoll_worker", "launch")  # of a Python: the same
DASHES: Final = "--"
OTHERS: Final = re.compile(
    r"(?<![\w.-])(torchrun|accelerate|deepspeed|mpirun|torch\.distributed\.(run|launch)"
    r"|atoll[-_]worker\s+launch)(?![\w.-])"
)  # in any word, since a shell may start it
PYTHON: Final = re.compile(r"python[0-9.]*")


def is_launched(command: Sequence[str]) -> bool:
    words = (*map(os.path.basename, command[:1]), *command[1:4])
    return words[:2] == LAUNCHER or words[1:] == MODULE


def within(command: Sequence[str]) -> Sequence[str]:
    return command[list(command).index(DASHES) + 1 :] if DASHES in command else ()


def has_launcher(command: Sequence[str], args: Sequence[str] = ()) -> bool:
    words = [*command, *args]
    return is_launched(words) or any(map(OTHERS.search, words))


def under_launcher(command: Sequence[str], args: Sequence[str] = ()) -> list[str]:
    """Return the command as every host runs it; `args` follow it and say what it starts.

    The launcher is that of the command's own Python, where it names one: a script's environment may
    not be first on the PATH.
    """
    if has_launcher(command, args):
        return list(command)
    first = command[0] if command else ""
    known = PYTHON.fullmatch(os.path.basename(first)) is not None
    own = (first, *MODULE) if known else LAUNCHER
    return [*own, DASHES, *command]


OF_EVERY_POD = {"name", "image", "imagePullPolicy", "resources", "ports", "volumeMounts"}
BUILT_IN = "bytegpt"  # in the commands of the built-in model
# Of launchers.
OPTION: Final = re.compile(r"(?<![\w-])--(standalone|nnodes)(?:[= ](\S+))?(?![\w-])")
NUMBER: Final = re.compile(r"(?:\d+:)?(\d+)")  # of hosts, or MIN:MAX
KINDS: Final = frozenset({"auto", "cpu", "gpu", "xpu"})  # in place of a number of processes


def on_this_machine(job: Job) -> SpecError | None:
    return nowhere(job) or evaluator_of_another_model(job)


def nowhere(job: Job) -> SpecError | None:
    """Reject what neither executor can do: a launcher with options of other hosts or processes.

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
    given = {variable.name: variable.value for variable in env}
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
    """Say that the built-in evaluator cannot measure what the learners train; None if it can.

    The operator does not refuse it: the evaluator ends with its reason, and hurts nobody.
    """
    evaluator = job.spec.evaluator
    if evaluator is None or evaluator.template.container.command:
        return None
    places: list[Container | PodOverrides] = [job.spec.learner.template.container]
    places += [region.pod_overrides for region in job.spec.regions]
    words = " ".join(word for place in places for word in (*place.command, *place.args))
    if not any(place.command for place in places) or BUILT_IN in words:
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
    remedy = "give file:///FOLDER, a folder that spec.syncer.template mounts, or a bucket's URL"
    if not (spec.export_url or spec.syncer.storage.url) and spec.syncer.shards > 1:
        problem = "is missing: several shards need a folder that they share"
        return SpecError("spec.export.url" if spec.export else "spec.export", problem, remedy)
    if not spec.checkpoint.url and spec.checkpoint.every_steps is not None:
        problem = "is missing: checkpoints need a place that every shard reaches"
        return SpecError("spec.checkpoint.url", problem, remedy)
    return None


def without_effect_here(job: Job) -> list[str]:
    """List what `atoll run` leaves to clusters; not what every pod needs and no process does."""
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
