"""One table of presets serves the parser, the CEL rules and the CRD."""

from typing import Any

import pytest

from atoll_operator.api import presets, rules
from atoll_operator.api.manifest import parse
from atoll_operator.api.presets import PRESETS, Preset
from atoll_operator.api.sync import SyncSpec
from unit.kube.cluster_values import MANIFEST


def sync(**fields: Any) -> SyncSpec:
    """What becomes of spec.sync with these fields and three learners."""
    given = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return parse(MANIFEST, (f"spec.sync={{{given}}}",)).spec.sync


def test_every_preset_has_settings_that_are_fields_of_sync() -> None:
    assert set(PRESETS) == set(Preset)
    known = {each.alias for each in SyncSpec.model_fields.values()}
    for each in PRESETS.values():
        assert set(each.settings) <= known
    assert set(presets.fields()) <= known


def test_a_preset_fills_only_what_is_not_given() -> None:
    plain = sync(preset="DiLoCo")
    assert (plain.fragments, plain.overlap, plain.quorum) == (1, 0, 3)
    assert sync(preset="DiLoCo", quorum=2, fragments=4).quorum == 2
    assert sync(preset="DiLoCo", fragments=4).fragments == 4


def test_without_a_preset_the_defaults_are_decoupled_diloco() -> None:
    assert sync() == sync(preset="DecoupledDiLoCo")
    assert sync().quorum == 1


@pytest.mark.parametrize("field", ["fragments", "overlap"])
def test_cel_knows_the_same_values_as_the_parser(field: str) -> None:
    text = rules.effective(field)
    for name in Preset:
        value = getattr(sync(preset=name), field)
        special = f"self.sync.preset == '{name}' ? {value} :"
        assert (special in text) == (value != rules.default_of(field))
    assert text.endswith(f": {rules.default_of(field)})")
