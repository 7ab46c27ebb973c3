"""The models of `spec.sync`, and `PRESETS`: the published systems that `spec.sync.preset` names.

The symbols are those of Decoupled DiLoCo (arXiv 2604.21428): P fragments, H period, tau overlap,
K quorum. docs/algorithm.md explains the formulas. Parser, CEL rules, CRD and docs/spec.md derive
presets from the table, so a new one is a member of `Preset` and an entry of `PRESETS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from atoll_operator.api.job.fields import LEARNERS_MAX, REGIONS_MAX, Model, ShortText
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import AUTO_FRAGMENTS_MAX, Fragments, GraceLimit, Merge, Momentum
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire


class Preset(StrEnum):
    """A published system."""

    DILOCO = "DiLoCo"
    STREAMING_DILOCO = "StreamingDiLoCo"
    DECOUPLED_DILOCO = "DecoupledDiLoCo"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSystem:
    """What a preset stands for: `settings` holds fields of `spec.sync` as a manifest spells them.

    With `waits`, every learner waits for the others: the quorum is all learners, however many there
    are, unless the manifest gives a number, and `step()` waits at hand-over + overlap.
    """

    about: str
    settings: Mapping[str, Any]
    waits: bool


PRESETS: Final[Mapping[Preset, PublishedSystem]] = {
    Preset.DILOCO: PublishedSystem(
        about="plain DiLoCo (arXiv 2311.08105): all learners train for a period and then wait for"
        " the mean of their work",
        settings={
            "fragments": 1,
            "overlap": 0,
            "grace": {"enabled": False},
            "merge": "Mean",
            "outer": {"learningRate": "0.7", "momentum": "0.9"},
            "wire": {"up": "f32", "down": "f32"},
        },
        waits=True,
    ),
    Preset.STREAMING_DILOCO: PublishedSystem(
        about="Streaming DiLoCo (arXiv 2501.18512): fragments are merged in turn while training"
        " continues, learners send 4 bits per value and blend what they get",
        settings={
            "grace": {"enabled": False},
            "merge": "Mean",
            "adopt": {"mode": "Blend", "blendPercent": 50},
            "outer": {"learningRate": "0.4", "momentum": "0.9"},
            "wire": {"up": "int4", "down": "bf16"},
        },
        waits=True,
    ),
    Preset.DECOUPLED_DILOCO: PublishedSystem(
        about="Decoupled DiLoCo (arXiv 2604.21428): no learner waits for another one",
        settings={},
        waits=False,
    ),
}
DEFAULT: Final = Preset.DECOUPLED_DILOCO
QUORUM: Final = "quorum"  # None for a preset that asks for all learners
ALL: Final = "all learners"


def fields() -> tuple[str, ...]:
    """List the fields below `spec.sync` whose default depends on the preset, such as `wire.up`."""
    named = {
        f"{field}.{inner}" if inner else field
        for preset in PRESETS.values()
        for field, value in preset.settings.items()
        for inner in (value if isinstance(value, Mapping) else ("",))
    }
    return (*sorted(named), QUORUM)


def values(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in PRESETS.items():
        value: Any = each.settings
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if path == QUORUM and each.waits:
            value = ALL
        if value is not None:
            found[str(name)] = value
    return found


def fill(sync: dict[str, Any]) -> None:
    """Add to `sync` what its preset says and it does not; an unknown preset adds nothing.

    Raises SpecError for a quorum that is null, which here alone means all learners.
    """
    if QUORUM in sync and sync[QUORUM] is None:
        problem = "must be a whole number, got None"
        raise SpecError(f"spec.sync.{QUORUM}", problem, "give a number, or leave it out")
    preset = sync.get("preset", DEFAULT)
    if preset not in tuple(Preset):
        return
    published = PRESETS[Preset(preset)]
    for field, value in published.settings.items():
        given = sync.setdefault(field, value)
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            sync[field] = {**value, **given}
    if published.waits:
        sync.setdefault(QUORUM, None)


def waits(preset: Preset) -> bool:
    return PRESETS[preset].waits


PERIOD_MAX: Final = 1_000_000  # ticks


def _number_or_auto(value: Any) -> int | Fragments:
    if value == Fragments.AUTO:
        return Fragments.AUTO
    if type(value) is int and 1 <= value <= PERIOD_MAX:
        return value
    raise PydanticCustomError("number_or_auto", "a number or auto", {"most": PERIOD_MAX})


def _as_it_is(value: int | Fragments) -> Any:
    return value if isinstance(value, int) else str(value)


NumberOrAuto = Annotated[
    int | Fragments,
    PlainValidator(_number_or_auto),
    PlainSerializer(_as_it_is),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "maximum": PERIOD_MAX,
            "pattern": f"^{Fragments.AUTO}$",
        }
    ),
]


def _wire_down(value: Any) -> Wire:
    if value in WIRES_DOWN:
        return Wire(value)
    kind = "offers_alone" if value in list(Wire) else "enum"
    expected = f"{', '.join(map(repr, map(str, WIRES_DOWN[:-1])))} or {str(WIRES_DOWN[-1])!r}"
    raise PydanticCustomError(kind, "a format of what shards send", {"expected": expected})


WireDown = Annotated[
    Wire,
    PlainValidator(_wire_down),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "enum": [str(wire) for wire in WIRES_DOWN]}),
]


class AdoptMode(StrEnum):
    """How a learner takes a new value."""

    OVERWRITE = "Overwrite"
    BLEND = "Blend"


class GraceSpec(Model):
    """Waiting for more than the quorum."""

    enabled: bool = True
    """Whether a merge that has its quorum waits a little for more learners."""
    safety_percent: int = Field(default=80, ge=1, le=99)
    """Percent of the time hidden by the overlap that this wait may use (gamma in arXiv 2604.21428,
    equation 3)."""
    limit: GraceLimit = Field(default=GraceLimit.WORK, strict=False)
    """How long this wait may be. Work: as many steps as the period divided by the learners, so that
    their work is kept where links are slow. Overlap: as long as the overlap hides, which is the
    published rule. Training goes on in both."""


class AdoptSpec(Model):
    """How a learner takes a merged value."""

    mode: AdoptMode = Field(default=AdoptMode.OVERWRITE, strict=False)
    """Overwrite: the merged value replaces the learner's own. Blend: the learner keeps a share of
    its own value."""
    blend_percent: int = Field(default=50, ge=1, le=99)
    """Percent of its own value that a learner keeps; only with mode Blend."""


ABOVE_0: Final = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)$"


class OuterSpec(Model):
    """The outer optimizer; decimal strings, as the API conventions forbid floats."""

    learning_rate: str = Field(default="0.7", pattern=ABOVE_0, max_length=32)
    """Learning rate of the outer optimizer, as a decimal number in quotes."""
    momentum: str = Field(
        default=Momentum.AUTO.value,
        pattern=rf"^({Momentum.AUTO}|0(\.[0-9]+)?)$",
        max_length=32,
        description=(
            "Nesterov momentum of the outer optimizer: a decimal number in quotes, or"
            f" {Momentum.AUTO}, which begins at 0 and grows with the merges of each fragment,"
            " to 0.9 at most, in a time that fits the job's length."
        ),
    )


class WireSpec(Model):
    """Number formats between learners and shards."""

    up: Wire = Field(default=Wire.BF16, strict=False)
    """Number format of what learners send: the change since the last merged value. With int2 each
    number becomes one of four."""
    down: WireDown = Field(default=Wire.BF16)
    """Number format of what shards send: the merged value or its change."""


class SyncSpec(Model):
    """What is computed; the preset fills what is not given."""

    preset: Preset = Field(
        default=DEFAULT,
        strict=False,
        description=(
            "The published system whose settings fill the fields of spec.sync that are not given. "
            + " ".join(f"{name}: {each.about}." for name, each in PRESETS.items())
        ),
    )
    fragments: NumberOrAuto = Field(
        default=Fragments.AUTO,
        description=(
            "Number of parts into which the model is cut (P). Each is merged in turn."
            f" {Fragments.AUTO} is {AUTO_FRAGMENTS_MAX}, or as many as the model's tensors and"
            " the period allow. At most the period."
        ),
    )
    period: int = Field(default=24, ge=1, le=PERIOD_MAX)
    """Steps between two merges of the same fragment (H). A shorter period brings the learners
    closer together, and each halving doubles what travels."""
    overlap: int = Field(default=2, ge=0, le=PERIOD_MAX)
    """Steps between a learner's hand-over of a fragment and its adoption of the merged value (tau).
    With 1 or more, training continues while values travel; with 0, learners wait. These steps
    should take longer than a fragment's way to the shard and back: `atoll top` shows work that
    comes too late. Less than the period."""
    quorum: int | None = Field(
        default=1, ge=1, le=LEARNERS_MAX * REGIONS_MAX
    )  # None: all learners, as a preset says; a manifest has a number
    """Number of learners whose work a merge must contain (K). Training waits while fewer are there.
    At most the number of learners."""
    grace: GraceSpec = GraceSpec()
    """Waiting for more learners than the quorum."""
    merge: Merge = Field(default=Merge.RADIAL_DIRECTIONAL, strict=False)
    """How the learners' changes become one. RadialDirectional averages their lengths and their
    directions separately, per tensor. Mean is the plain weighted mean. Embeddings, and tensors that
    meanPatterns name, are always merged by Mean."""
    adopt: AdoptSpec = AdoptSpec()
    """How a learner takes a merged value."""
    outer: OuterSpec = OuterSpec()
    """The outer optimizer (SGD with Nesterov momentum) that the shards apply."""
    wire: WireSpec = WireSpec()
    """Number formats between learners and shards."""
    mean_patterns: list[ShortText] = Field(default=[], max_length=64)
    """Names of tensors that are merged by Mean whatever spec.sync.merge says, with * and ? as in
    file names: `*.router.weight`."""
    norm_limit: int = Field(default=10, ge=0, le=1_000_000)
    """A learner's change is left out of a merge when it is longer than so many times both the
    learner's last ones and the other learners': a loss spike, or a wrong learning rate. 0: none
    is."""

    @property
    def lockstep(self) -> bool:
        return self.overlap == 0 or waits(self.preset)
