"""One table of presets serves the parser, the CEL rules and the CRD."""

from typing import Any

import pytest
import yaml

from atoll_operator.api import crd
from atoll_operator.api.job import field_rules, sync_fields
from atoll_operator.api.job.parsing import from_object, parse
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.sync_fields import Preset, SyncSpec
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Fragments, GraceLimit, Merge, Quorum, Sync
from atoll_protos.transfer.codecs import Wire
from unit.kube.cluster_values import MANIFEST


def given(**fields: Any) -> Job:
    """A job of three learners whose spec.sync has these fields."""
    settings = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return parse(MANIFEST, (f"spec.sync={{{settings}}}",))


def sync(**fields: Any) -> SyncSpec:
    return given(**fields).spec.sync


def test_a_preset_fills_only_what_is_not_given() -> None:
    plain = sync(preset="DiLoCo")
    assert (plain.fragments, plain.overlap, plain.quorum) == (1, 0, None)
    assert sync(preset="StreamingDiLoCo").lockstep
    assert sync(overlap=0).lockstep
    assert not sync().lockstep
    own = sync(preset="DiLoCo", quorum=2, fragments=4)
    assert (own.quorum, own.fragments) == (2, 4)
    assert sync(preset="DiLoCo", fragments="auto").fragments == sync().fragments == Fragments.AUTO
    streaming = sync(preset="StreamingDiLoCo", wire="{up: bf16}", outer="{learningRate: '0.5'}")
    assert (streaming.wire.up, streaming.wire.down) == ("bf16", "bf16")
    assert (streaming.outer.learning_rate, streaming.outer.momentum) == ("0.5", "0.9")
    assert sync(preset="StreamingDiLoCo", adopt="{blendPercent: 30}").adopt.mode == "Blend"


def test_the_run_file_has_the_settings_of_the_published_systems() -> None:
    plain = run_file(given(preset="DiLoCo")).sync
    assert (plain.fragments, plain.overlap, plain.lockstep) == (1, 0, True)
    assert (plain.quorum, plain.merge, plain.grace) == (Quorum.ALL, Merge.MEAN, False)
    assert (plain.wire_up, plain.wire_down) == (Wire.F32, Wire.F32)
    streaming = run_file(given(preset="StreamingDiLoCo")).sync
    assert (streaming.lockstep, streaming.wire_up, streaming.blend) == (True, Wire.INT4, 0.5)
    own = run_file(given()).sync
    assert (own.merge, own.fragments) == (Merge.RADIAL_DIRECTIONAL, Fragments.AUTO)
    assert not own.lockstep
    published = run_file(given(grace="{limit: Overlap}")).sync
    assert (own.grace_limit, published.grace_limit) == (GraceLimit.WORK, GraceLimit.OVERLAP)


def test_the_api_server_fills_nothing_in_that_a_preset_says() -> None:
    """A default of the schema would count as given, and hide the preset's value."""
    root = crd.schema()["properties"]["spec"]["properties"]["sync"]
    assert {"wire.up", "outer.momentum", "fragments", "quorum"} <= set(sync_fields.fields())
    for path in sync_fields.fields():
        node = root
        for name in path.split("."):
            node = node["properties"][name]
            assert "default" not in node, path


def test_the_quorum_of_a_preset_that_waits_does_not_depend_on_the_number_of_learners() -> None:
    few = parse(MANIFEST, ("spec.sync={preset: DiLoCo}", "spec.regions=[{name: us-east}]"))
    many = parse(MANIFEST, ("spec.sync={preset: DiLoCo}",))
    assert run_file(few).hash == run_file(many).hash
    assert (many.spec.quorum, many.spec.learners_needed) == (3, 1)
    for preset, needed in (("DiLoCo", 1), ("DecoupledDiLoCo", 2)):
        job = given(preset=preset, quorum=2)
        assert run_file(job).sync.quorum == 2
        assert (job.spec.quorum, job.spec.learners_needed) == (2, needed)


@pytest.mark.parametrize(
    ("field", "values", "problem", "remedy"),
    [
        ("quorum", ["null"], "must be a whole number", "or leave it out"),  # as by the API server
        (
            *("fragments", ["some", "0", "true", "1.5", "null", "'3'", "[]"]),
            *("must be auto or a whole number from 1 to", "; write auto"),
        ),
    ],
)
def test_what_is_no_number_is_refused(
    field: str, values: list[str], problem: str, remedy: str
) -> None:
    for wrong in values:
        with pytest.raises(SpecError) as caught:
            given(preset="DiLoCo", **{field: wrong})
        assert str(caught.value).startswith(f"spec.sync.{field}: {problem}")
        assert str(caught.value).endswith(remedy)


def test_without_a_preset_the_defaults_are_decoupled_diloco_and_the_run_files_own() -> None:
    assert sync() == sync(preset="DecoupledDiLoCo")
    document = yaml.safe_load(MANIFEST)
    del document["spec"]["sync"]
    assert run_file(from_object(document)).sync == Sync()
    assert sync().quorum == 1


def test_cel_knows_the_same_values_as_the_parser() -> None:
    text, default = field_rules.effective("overlap"), field_rules.default_of("overlap")
    for name in Preset:
        value = sync(preset=name).overlap
        assert (f"self.sync.preset == '{name}' ? {value} :" in text) == (value != default)
    assert text.endswith(f": {default})")
