"""One table of presets serves the parser, the CEL rules and the CRD."""

from typing import Any

import pytest

from atoll_operator.api import crd, presets, rules
from atoll_operator.api.manifest import parse
from atoll_operator.api.presets import PRESETS, Preset
from atoll_operator.api.runfile import run_file
from atoll_operator.api.sync import SyncSpec
from atoll_protos.errors import SpecError
from atoll_protos.run import Fragments, Momentum, Quorum
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


def test_a_preset_fills_only_what_is_not_given() -> None:
    plain = sync(preset="DiLoCo")
    assert (plain.fragments, plain.overlap, plain.quorum) == (1, 0, None)
    assert sync(preset="DiLoCo", quorum=2, fragments=4).quorum == 2
    assert sync(preset="DiLoCo", fragments=4).fragments == 4


def test_a_preset_fills_the_fields_inside_of_one_that_is_given_too() -> None:
    streaming = sync(preset="StreamingDiLoCo", wire="{up: bf16}", outer="{learningRate: '0.5'}")
    assert (streaming.wire.up, streaming.wire.down) == ("bf16", "bf16")
    assert (streaming.outer.learning_rate, streaming.outer.momentum) == ("0.5", "0.9")
    assert sync(preset="DiLoCo", wire="{up: bf16}").wire.down == "f32"
    assert sync(preset="StreamingDiLoCo", adopt="{blendPercent: 30}").adopt.mode == "Blend"


def test_the_api_server_fills_nothing_in_that_a_preset_says() -> None:
    """A default of the schema would count as given, and hide the preset's value."""
    root = crd.schema()["properties"]["spec"]["properties"]["sync"]
    assert {"wire.up", "outer.momentum", "fragments", "quorum"} <= set(presets.fields())
    for path in presets.fields():
        node = root
        for name in path.split("."):
            node = node["properties"][name]
            assert "default" not in node, path


@pytest.mark.parametrize(
    ("fields", "outer"),
    [
        ({}, (0.7, Momentum.AUTO)),
        ({"outer": "{learningRate: '0.5'}"}, (0.5, Momentum.AUTO)),
        ({"outer": "{learningRate: '0.7', momentum: '0.9'}"}, (0.7, 0.9)),
        ({"preset": "DiLoCo"}, (0.7, 0.9)),
        ({"preset": "StreamingDiLoCo"}, (0.4, 0.9)),
        ({"preset": "DiLoCo", "outer": "{momentum: auto}"}, (0.7, Momentum.AUTO)),
    ],
)
def test_the_momentum_is_auto_unless_it_is_given_or_the_preset_is_another_system(
    fields: dict[str, str], outer: tuple[float, float | Momentum]
) -> None:
    given = ", ".join(f"{key}: {value}" for key, value in fields.items())
    found = run_file(parse(MANIFEST, (f"spec.sync={{{given}}}",))).sync
    assert (found.outer_learning_rate, found.outer_momentum) == outer


def test_the_quorum_of_a_preset_that_waits_does_not_depend_on_the_number_of_learners() -> None:
    few = parse(MANIFEST, ("spec.sync={preset: DiLoCo}", "spec.regions=[{name: us-east}]"))
    many = parse(MANIFEST, ("spec.sync={preset: DiLoCo}",))
    assert run_file(few).hash == run_file(many).hash
    assert run_file(many).sync.quorum is Quorum.ALL
    assert (many.spec.quorum, many.spec.learners_needed) == (3, 1)


def test_a_quorum_that_is_given_is_a_number_and_what_training_needs_where_nobody_waits() -> None:
    for given, needed in (({"preset": "DiLoCo"}, 1), ({"preset": "DecoupledDiLoCo"}, 2)):
        job = parse(MANIFEST, (f"spec.sync={{preset: {given['preset']}, quorum: 2}}",))
        assert run_file(job).sync.quorum == 2
        assert (job.spec.quorum, job.spec.learners_needed) == (2, needed)


def test_a_quorum_of_null_is_refused_as_by_the_api_server() -> None:
    with pytest.raises(SpecError, match=r"^spec\.sync\.quorum: must be a whole number"):
        sync(preset="DiLoCo", quorum="null")


def test_without_a_preset_the_defaults_are_decoupled_diloco() -> None:
    assert sync() == sync(preset="DecoupledDiLoCo")
    assert sync().quorum == 1


def test_fragments_are_auto_unless_a_number_or_the_preset_says_otherwise() -> None:
    assert sync().fragments == sync(fragments="auto").fragments == Fragments.AUTO
    assert sync(preset="StreamingDiLoCo").fragments == Fragments.AUTO
    assert sync(preset="DiLoCo", fragments="auto").fragments == Fragments.AUTO
    assert sync(fragments=3).fragments == 3
    for wrong in ("some", "0", "true", "1.5", "null", "'3'", "[]"):
        with pytest.raises(SpecError) as caught:
            sync(fragments=wrong)
        text = str(caught.value)
        assert text.startswith("spec.sync.fragments: must be auto or a whole number from 1 to")
        assert text.endswith("; write auto")


@pytest.mark.parametrize("field", ["overlap"])
def test_cel_knows_the_same_values_as_the_parser(field: str) -> None:
    text = rules.effective(field)
    for name in Preset:
        value = getattr(sync(preset=name), field)
        special = f"self.sync.preset == '{name}' ? {value} :"
        assert (special in text) == (value != rules.default_of(field))
    assert text.endswith(f": {rules.default_of(field)})")
