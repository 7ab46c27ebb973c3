"""The published systems that `spec.sync.preset` names: one table of their settings.

Parser, CEL rules, CRD and docs/spec.md derive from it what they say of presets, so a new one is a
member of `Preset` and an entry of `PRESETS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from atoll_protos.errors import SpecError


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
    """The fields below `spec.sync` whose default depends on the preset, such as `wire.up`."""
    named = {
        f"{field}.{inner}" if inner else field
        for each in PRESETS.values()
        for field, value in each.settings.items()
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
