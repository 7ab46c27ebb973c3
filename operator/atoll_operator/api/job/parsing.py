"""A manifest becomes a `Job`: YAML, `--set` changes, preset, models, rules (`spec`)."""

import copy
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pydantic

from atoll_operator.api.job import field_rules, presets, yaml_text
from atoll_operator.api.job.model_base import Model, fields_at, meant
from atoll_operator.api.job.spec import API_VERSION, KIND, Job, Spec
from atoll_protos.errors import SpecError

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
    """A manifest's text, with changes such as `spec.steps=100`, as a job; raises SpecError."""
    return from_object(document_in(text, changes))


def document_in(text: str, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The job's document in a manifest's text, with changes; raises SpecError.

    The file may hold other objects too, such as a claim that the job mounts, but only one job.
    """
    documents = yaml_text.documents(text, "manifest")
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
    """A manifest or an object of the API server as a job; raises SpecError.

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
        presets.fill(sync)  # else the models say what is wrong with it
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
    """The value without the nulls of pod templates, which mean "not given".

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
    place[key] = yaml_text.document(value, path)
    return field, ManifestEntry(place, key, value)


def _index(entries: list[Any], name: str, path: str) -> int:
    """Of an entry by its name or number; `+NAME` adds one where there is none of that name."""
    names = [each.get("name") if isinstance(each, dict) else None for each in entries]
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
    """The first error of a document that is not one of this model; `field` is its own name."""
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
