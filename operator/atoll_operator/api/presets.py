"""The published systems that `spec.sync.preset` names: one table of their settings.

A preset fills the fields of `spec.sync` that the manifest does not give. Every other place derives
what it says about a preset from `PRESETS`: the parser (`manifest.py`), the CEL rules of the API
server (`rules.py`), the CRD's defaults and descriptions (`crd.py`) and docs/spec.md (`docs.py`).
So a new preset is one member of `Preset` and one entry of `PRESETS` in this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from atoll_protos.errors import SpecError


class Preset(StrEnum):
    """A published system."""

    DILOCO = "DiLoCo"
    STREAMING_DILOCO = "StreamingDiLoCo"
    DECOUPLED_DILOCO = "DecoupledDiLoCo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a preset stands for.

    `settings` holds fields of `spec.sync` as a manifest spells them; a field that is absent keeps
    the default of the model. With `waits`, every learner waits for the others: the quorum is
    all learners, however many there are, unless the manifest gives a number, and `step()` waits
    at hand-over + overlap.
    """

    about: str
    settings: Mapping[str, Any]
    waits: bool


PRESETS: Final[Mapping[Preset, Published]] = MappingProxyType(
    {
        Preset.DILOCO: Published(
            about=(
                "plain DiLoCo (arXiv 2311.08105): all learners train for a period and then wait for"
                " the mean of their work"
            ),
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
        Preset.STREAMING_DILOCO: Published(
            about=(
                "Streaming DiLoCo (arXiv 2501.18512): fragments are merged in turn while training"
                " continues, learners send 4 bits per value and blend what they get"
            ),
            settings={
                "grace": {"enabled": False},
                "merge": "Mean",
                "adopt": {"mode": "Blend", "blendPercent": 50},
                "outer": {"learningRate": "0.4", "momentum": "0.9"},
                "wire": {"up": "int4", "down": "bf16"},
            },
            waits=True,
        ),
        Preset.DECOUPLED_DILOCO: Published(
            about="Decoupled DiLoCo (arXiv 2604.21428): no learner waits for another one",
            settings={},
            waits=False,
        ),
    }
)
DEFAULT: Final = Preset.DECOUPLED_DILOCO
QUORUM: Final = "quorum"  # None for a preset that asks for all learners
ALL: Final = "all learners"


def fields() -> tuple[str, ...]:
    """The fields below `spec.sync` whose default depends on the preset, such as `wire.up`."""
    named = {
        f"{field}.{inner}" if inner else field
        for each in PRESETS.values()
        for field, value in each.settings.items()
        for inner in (value if isinstance(value, Mapping) else ("",))
    }
    return (*sorted(named), QUORUM)


def values(path: str) -> dict[str, Any]:
    """The presets that set a field below `spec.sync`, such as `wire.up`, with their values."""
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

    Fields inside of a field count one by one: with `wire: {up: bf16}`, `down` is the preset's.
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
    """Whether learners of this preset wait for each other."""
    return PRESETS[preset].waits
