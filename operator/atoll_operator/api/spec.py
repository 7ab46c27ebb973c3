"""The DecoupledTrainingJob manifest: read, checked, and with its preset filled in."""

import copy
from enum import StrEnum
from typing import Annotated, Any

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from atoll_operator.api import rules
from atoll_protos.errors import SpecError

API_VERSION = "atoll.dev/v1alpha1"
KIND = "DecoupledTrainingJob"
LEARNERS_MAX = 1000  # of a region
REGIONS_MAX = 64
SHARDS_MAX = 64
PERIOD_MAX = 1_000_000  # ticks
COUNT_MAX = (1 << 53) - 1  # JSON's whole numbers
SECONDS_MAX = 10 * 365 * 24 * 3600

ShortText = Annotated[str, Field(max_length=253)]


class Model(BaseModel):
    """Fields in camelCase, nothing unknown, nothing changes after reading."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


class EnvVar(BaseModel):
    """One environment variable of a container; local mode honours plain values."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = Field(min_length=1)
    value: str = ""


class Container(BaseModel):
    """What local mode honours of a container; all else is the cluster's."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow", frozen=True)
    command: list[str] = Field(default=[])
    args: list[str] = Field(default=[])
    working_dir: str = ""
    env: list[EnvVar] = Field(default=[])


class PodSpec(BaseModel):
    """A pod's containers."""

    model_config = ConfigDict(extra="allow", frozen=True)
    containers: list[Container] = Field(default=[])


class Template(BaseModel):
    """A pod template."""

    model_config = ConfigDict(extra="allow", frozen=True)
    spec: PodSpec = PodSpec()

    @property
    def container(self) -> Container:
        """The first container: the one that trains."""
        return self.spec.containers[0] if self.spec.containers else Container()


class Learner(Model):
    """What every learner runs."""

    template: Template = Template()
    hosts: int = Field(default=1, ge=1, le=64)


class PodOverrides(Model):
    """What a region changes in the template."""

    node_selector: dict[str, str] = Field(default={}, max_length=32)
    tolerations: list[dict[str, Any]] = Field(default=[], max_length=32)
    resources: dict[str, Any] = Field(default={})
    env: list[EnvVar] = Field(default=[], max_length=128)
    args: list[str] = Field(default=[], max_length=128)
    priority_class_name: str = Field(default="", max_length=253)


class RegionSpec(Model):
    """One region and its learners."""

    name: str = Field(pattern=f"^{rules.NAME.pattern}$", max_length=rules.NAME_CHARACTERS_MAX)
    learners: int = Field(default=1, ge=0, le=LEARNERS_MAX)
    pod_overrides: PodOverrides = PodOverrides()


class StorageType(StrEnum):
    """Where shards keep their state."""

    OBJECT_STORE = "ObjectStore"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    EPHEMERAL = "Ephemeral"


class Reclaim(StrEnum):
    """What becomes of the shards' claims when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Where shards keep their log. Local mode keeps it in the run folder whatever this says."""

    type: StorageType = Field(default=StorageType.EPHEMERAL, strict=False)
    url: str = Field(default="", max_length=2048)
    size: str = Field(default="10Gi", max_length=32, pattern=r"^[0-9]+([KMGTP]i?)?$")
    storage_class_name: str = Field(default="", max_length=253)
    reclaim: Reclaim = Field(default=Reclaim.RETAIN, strict=False)


class Syncer(Model):
    """The shards."""

    region: str = Field(default="", max_length=rules.NAME_CHARACTERS_MAX)
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    storage: StorageSpec = StorageSpec()
    endpoints: list[ShortText] = Field(default=[], max_length=SHARDS_MAX)
    template: Template = Template()


class Preset(StrEnum):
    """A published system (ALGORITHM.md, section 4)."""

    DILOCO = "DiLoCo"
    STREAMING_DILOCO = "StreamingDiLoCo"
    DECOUPLED_DILOCO = "DecoupledDiLoCo"


class MergeRule(StrEnum):
    """How differences become one."""

    RADIAL_DIRECTIONAL = "RadialDirectional"
    MEAN = "Mean"


class AdoptMode(StrEnum):
    """How a learner takes a new value."""

    OVERWRITE = "Overwrite"
    BLEND = "Blend"


class WireType(StrEnum):
    """Types on the wire."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class GraceSpec(Model):
    """Waiting for more than the quorum."""

    enabled: bool = True
    safety_percent: int = Field(default=80, ge=1, le=99)


class Adopt(Model):
    """With Blend a learner keeps `blendPercent` of its own value."""

    mode: AdoptMode = Field(default=AdoptMode.OVERWRITE, strict=False)
    blend_percent: int = Field(default=50, ge=1, le=99)


class Outer(Model):
    """The outer optimizer; decimal strings, as the API conventions forbid floats."""

    learning_rate: str = Field(default="0.7", pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=32)
    momentum: str = Field(default="0.9", pattern=r"^0(\.[0-9]+)?$", max_length=32)


class WireSpec(Model):
    """Types of offers (up) and publishes (down)."""

    up: WireType = Field(default=WireType.BF16, strict=False)
    down: WireType = Field(default=WireType.BF16, strict=False)


class SyncSpec(Model):
    """What is computed; the preset fills what is not given."""

    preset: Preset = Field(default=Preset.DECOUPLED_DILOCO, strict=False)
    fragments: int = Field(default=24, ge=1, le=PERIOD_MAX)
    period: int = Field(default=24, ge=1, le=PERIOD_MAX)
    overlap: int = Field(default=2, ge=0, le=PERIOD_MAX)
    quorum: int = Field(default=1, ge=1, le=LEARNERS_MAX * REGIONS_MAX)
    grace: GraceSpec = GraceSpec()
    merge: MergeRule = Field(default=MergeRule.RADIAL_DIRECTIONAL, strict=False)
    adopt: Adopt = Adopt()
    outer: Outer = Outer()
    wire: WireSpec = WireSpec()
    mean_patterns: list[ShortText] = Field(default=[], max_length=64)


class Evaluator(Model):
    """An observer that measures held-out loss on the outer parameters."""

    template: Template = Template()
    every_steps: int = Field(default=100, ge=1, le=COUNT_MAX)


class Failure(Model):
    """When lost nodes are given up and what for."""

    node_loss_seconds: int = Field(default=20, ge=1, le=86400)
    storm_percent: int = Field(default=50, ge=1, le=100)
    max_replacements_per_slot: int = Field(default=20, ge=0, le=10_000)
    syncer_lost_seconds: int = Field(default=3600, ge=1, le=SECONDS_MAX)


class Checkpoint(Model):
    """Learners' states beside the shards' logs (PROTOCOL.md, rule 28)."""

    url: str = Field(default="", max_length=2048)
    every_steps: int = Field(default=1000, ge=1, le=COUNT_MAX)


class Export(Model):
    """Where the final model goes: `file:///folder` is a folder of the shards' pods."""

    url: str = Field(max_length=2048, pattern=r"^[a-z0-9]+://.+$")


class Spec(Model):
    """The job as its user wrote it."""

    suspend: bool = False
    managed_by: str | None = Field(default=None, max_length=253)
    steps: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    seed: int = Field(default=0, ge=0, le=COUNT_MAX)
    learner: Learner = Learner()
    regions: list[RegionSpec] = Field(min_length=1, max_length=REGIONS_MAX)
    syncer: Syncer = Syncer()
    sync: SyncSpec = SyncSpec()
    evaluator: Evaluator | None = None
    failure: Failure = Failure()
    checkpoint: Checkpoint | None = None
    export: Export | None = None
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=SECONDS_MAX)
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=SECONDS_MAX)

    @property
    def learners(self) -> int:
        """Of all regions."""
        return sum(region.learners for region in self.regions)


class Job(Model):
    """A checked manifest."""

    name: str
    spec: Spec


PRESETS: dict[str, dict[str, Any]] = {
    Preset.DILOCO: {
        "fragments": 1,
        "overlap": 0,
        "grace": {"enabled": False},
        "merge": "Mean",
        "wire": {"up": "f32", "down": "f32"},
    },
    Preset.STREAMING_DILOCO: {
        "grace": {"enabled": False},
        "merge": "Mean",
        "adopt": {"mode": "Blend", "blendPercent": 50},
        "wire": {"up": "int4", "down": "bf16"},
    },
    Preset.DECOUPLED_DILOCO: {},
}
WAITING_PRESETS = (Preset.DILOCO, Preset.STREAMING_DILOCO)


def parse(text: str, changes: tuple[str, ...] = ()) -> Job:
    """A manifest, with `spec.x=y` changes; raises SpecError that names field and remedy."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise SpecError("manifest", f"is not YAML ({error})", "mend the file") from error
    jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    document = next(iter(jobs or documents), None)  # claims and the like may stand beside it
    if len(jobs) > 1:
        raise SpecError("manifest", f"holds {len(jobs)} jobs", "give one job a file")
    if not isinstance(document, dict):
        raise SpecError("manifest", "is no mapping", f"start it with apiVersion: {API_VERSION}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            raise SpecError(field, f"is {document.get(field)!r}", f"use {expected}")
    for change in changes:
        _change(document, change)
    return from_object(document)


def from_object(document: dict[str, Any]) -> Job:
    """A manifest or an object of the API server; raises SpecError. `document` stays as it is."""
    name = (document.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise SpecError("metadata.name", "is missing", "give it")
    spec = copy.deepcopy(document.get("spec"))
    if isinstance(spec, dict):
        _fill_preset(spec)
    try:
        job = Job(name=name, spec=Spec.model_validate(spec))
    except pydantic.ValidationError as error:
        raise _first(error) from error
    rules.check(job)
    return job


def _change(document: dict[str, Any], change: str) -> None:
    path, separator, value = change.partition("=")
    keys = path.split(".")
    if not separator or keys[0] not in ("spec", "metadata") or len(keys) == 1:
        raise SpecError(f"--set {change}", "is not spec.x=y", "write --set spec.steps=100")
    place = document
    for key in keys[:-1]:
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            raise SpecError(path, f"{key} has no fields", "change the manifest itself")
        place = inner
    place[keys[-1]] = yaml.safe_load(value)


def _fill_preset(spec: dict[str, Any]) -> None:
    sync = spec.setdefault("sync", {})
    if not isinstance(sync, dict):
        return
    preset = sync.get("preset", Preset.DECOUPLED_DILOCO)
    for field, value in PRESETS.get(preset, {}).items():
        sync.setdefault(field, value)
    if preset in WAITING_PRESETS and "quorum" not in sync:
        regions = [r for r in spec.get("regions") or [] if isinstance(r, dict)]
        counts = [r.get("learners", 1) for r in regions]
        sync["quorum"] = max(1, sum(c for c in counts if isinstance(c, int)))


def _first(error: pydantic.ValidationError) -> SpecError:
    first = error.errors()[0]
    field = "spec"
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}"
    remedies = {
        "extra_forbidden": ("is unknown", "remove it or mend its spelling"),
        "missing": ("is missing", "give it"),
    }
    problem, remedy = remedies.get(first["type"], ("", ""))
    message = first["msg"][0].lower() + first["msg"][1:]
    return SpecError(field, problem or f"{first['input']!r}: {message}", remedy or "mend the value")
