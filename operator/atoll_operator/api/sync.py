"""The models of `spec.sync`: what is computed, and the published settings of each field.

The symbols are those of Decoupled DiLoCo (arXiv 2604.21428): P fragments, H period, tau overlap,
K quorum. docs/algorithm.md explains the formulas. The symbols and defaults of other systems stand
in `presets.py`.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from atoll_operator.api import presets
from atoll_operator.api.model import LEARNERS_MAX, REGIONS_MAX, Model, ShortText
from atoll_operator.api.presets import Preset
from atoll_protos.codecs import Wire
from atoll_protos.run import AUTO_FRAGMENTS_MAX, Fragments, Merge, Momentum

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


class AdoptMode(StrEnum):
    """How a learner takes a new value."""

    OVERWRITE = "Overwrite"
    BLEND = "Blend"


class GraceSpec(Model):
    """Waiting for more than the quorum."""

    enabled: bool = Field(
        default=True,
        description=(
            "Whether a merge that has its quorum waits a little for more learners. It waits only"
            " as long as the overlap hides, so no learner has to wait for the merged value."
        ),
    )
    safety_percent: int = Field(
        default=80,
        ge=1,
        le=99,
        description=(
            "Percent of the time hidden by the overlap that this wait may use (gamma in arXiv"
            " 2604.21428, equation 3)."
        ),
    )


class Adopt(Model):
    """How a learner takes a merged value."""

    mode: AdoptMode = Field(
        default=AdoptMode.OVERWRITE,
        strict=False,
        description=(
            "Overwrite: the merged value replaces the learner's own. Blend: the learner keeps a"
            " share of its own value."
        ),
    )
    blend_percent: int = Field(
        default=50,
        ge=1,
        le=99,
        description="Percent of its own value that a learner keeps; only with mode Blend.",
    )


class Outer(Model):
    """The outer optimizer; decimal strings, as the API conventions forbid floats."""

    learning_rate: str = Field(
        default="0.7",
        pattern=r"^[0-9]+(\.[0-9]+)?$",
        max_length=32,
        description="Learning rate of the outer optimizer, as a decimal number in quotes.",
    )
    momentum: str = Field(
        default=Momentum.AUTO.value,
        pattern=rf"^({Momentum.AUTO}|0(\.[0-9]+)?)$",
        max_length=32,
        description=(
            "Nesterov momentum of the outer optimizer: a decimal number in quotes, or"
            f" {Momentum.AUTO}, which begins at 0 and grows with the merges of each fragment,"
            " to 0.9 at most, in a time that fits spec.steps."
        ),
    )


class WireSpec(Model):
    """Number formats between learners and shards."""

    up: Wire = Field(
        default=Wire.BF16,
        strict=False,
        description="Number format of what learners send: the change since the last merged value.",
    )
    down: Wire = Field(
        default=Wire.BF16,
        strict=False,
        description="Number format of what shards send: the merged value or its change.",
    )


class SyncSpec(Model):
    """What is computed; the preset fills what is not given."""

    preset: Preset = Field(
        default=presets.DEFAULT,
        strict=False,
        description=(
            "The published system whose settings fill the fields of spec.sync that are not given. "
            + " ".join(f"{name}: {each.about}." for name, each in presets.PRESETS.items())
        ),
    )
    fragments: NumberOrAuto = Field(
        default=Fragments.AUTO,
        description=(
            "Number of parts into which the model is cut (P). Each is merged by itself, in turn."
            f" {Fragments.AUTO} is {AUTO_FRAGMENTS_MAX}, or as many as the model's tensors and the"
            " period allow, so that it fits every model. A number is at most the period."
        ),
    )
    period: int = Field(
        default=24,
        ge=1,
        le=PERIOD_MAX,
        description=(
            "Steps between two merges of the same fragment (H). A shorter period brings the"
            " learners closer together, and each halving doubles what travels."
        ),
    )
    overlap: int = Field(
        default=2,
        ge=0,
        le=PERIOD_MAX,
        description=(
            "Steps between a learner's hand-over of a fragment and its adoption of the merged"
            " value (tau). With 1 or more, training continues while values travel; with 0, learners"
            " wait. These steps should take longer than a fragment's way to the shard and back;"
            " if they do not, work comes too late for its merge, or learners are blocked; `atoll"
            " top` shows both. Less than the period."
        ),
    )
    quorum: int | None = Field(  # None: all learners, as a preset says; a manifest has a number
        default=1,
        ge=1,
        le=LEARNERS_MAX * REGIONS_MAX,
        description=(
            "Number of learners whose work a merge must contain (K). Training waits while fewer"
            " are there, but where learners wait for each other a merge never asks for more than"
            " are in training. At most the number of learners."
        ),
    )
    grace: GraceSpec = Field(
        default=GraceSpec(), description="Waiting for more learners than the quorum."
    )
    merge: Merge = Field(
        default=Merge.RADIAL_DIRECTIONAL,
        strict=False,
        description=(
            "How the learners' changes become one. RadialDirectional averages their lengths and"
            " their directions separately, per tensor, so that the result does not shrink with"
            " the number of learners. Mean is the plain weighted mean. Embeddings, and tensors"
            " that meanPatterns name, are always merged by Mean."
        ),
    )
    adopt: Adopt = Field(default=Adopt(), description="How a learner takes a merged value.")
    outer: Outer = Field(
        default=Outer(),
        description="The outer optimizer (SGD with Nesterov momentum) that the shards apply.",
    )
    wire: WireSpec = Field(
        default=WireSpec(), description="Number formats between learners and shards."
    )
    mean_patterns: list[ShortText] = Field(
        default=[],
        max_length=64,
        description=(
            "Names of tensors that are merged by Mean whatever spec.sync.merge says, with * and ?"
            " as in file names: `*.router.weight`."
        ),
    )

    @property
    def lockstep(self) -> bool:
        """Whether learners wait for each other (docs/protocol.md, rule 15)."""
        return self.overlap == 0 or presets.waits(self.preset)
