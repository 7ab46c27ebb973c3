"""Whatever stands in a file that people or programs write, its reader says what is wrong.

Each reader raises the one error that it names, or takes a value that what follows can use.
"""

import json
from typing import Any, Final

import pytest
import yaml
from hypothesis import strategies as st

from atoll_operator.api.job import parsing
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.local import chaos
from atoll_protos.documents import loads, mapping
from atoll_protos.errors import SpecError
from atoll_protos.job import schedule
from atoll_protos.job.run_file import (
    Checkpoints,
    Expected,
    Limit,
    Region,
    RunFile,
    first_difference,
)
from unit.hostile.mutated import (
    Target,
    check_short,
    mutated_bytes,
    mutated_documents,
    texts,
)

REGIONS: Final = (Region(name="a", learners=2), Region(name="b-c", learners=1))
RUN_FILES: Final = (
    RunFile(job="one", regions=REGIONS, steps=10),
    RunFile(
        job="two",
        regions=(),
        shards=3,
        tokens=10**6,
        evaluator_every=5,
        checkpoint=Checkpoints(url="s3://b/c", every=7),
        restore_from="file:///data/step-3",
    ),
)
SLOTS: Final = Expected(
    regions=REGIONS, absent=("a-1",), limits=(Limit(region="a", generation=2, tokens_per_step=9),)
)
MANIFEST: Final = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "DecoupledTrainingJob",
    "metadata": {"name": "job", "labels": {"a": "b"}},
    "spec": {
        "steps": 100,
        "seed": 3,
        "regions": [{"name": "a", "learners": 2}, {"name": "b", "learners": 1}],
        "sync": {"preset": "DecoupledDiLoCo", "fragments": 4, "period": 8, "wire": {"up": "int8"}},
        "syncer": {"shards": 2, "storage": {"type": "PersistentVolumeClaim", "size": "5Gi"}},
        "learner": {
            "hosts": 2,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "learner",
                            "image": "x",
                            "command": ["python", "train.py"],
                            "args": ["--batch", "2"],
                            "env": [{"name": "A", "value": "b"}],
                            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
                        }
                    ]
                }
            },
        },
        "checkpoint": {"url": "s3://b/c", "everySteps": 5, "keep": 2},
        "export": {"url": "file:///x"},
        "evaluator": {"everySteps": 20},
    },
}
PLAN: Final = {
    "faults": [
        {"at": 30, "kill": "shard-1"},
        {"at": 90.5, "pause": "eu-west-0", "for": 5400},
        {"at": 120, "cut": ["eu-west-0", "shard-1"], "for": 20},
    ],
}


def loaded(value: Any) -> Any:
    return json.loads(value.to_json())


def yamls(document: Any) -> st.SearchStrategy[bytes]:
    """The same written by hand, and as JSON, which is YAML too."""
    return st.one_of(texts([document]), mutated_bytes([yaml.safe_dump(document).encode()]))


def text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def read_run_file(data: bytes) -> None:
    try:
        found = RunFile.from_json(text_of(data))
    except SpecError:
        return
    assert RunFile.from_json(found.to_json()) == found
    assert found.hash
    try:
        first_difference(found, text_of(data))
    except ValueError:
        return


def read_length(data: bytes) -> None:
    try:
        found = schedule.read(text_of(data))
    except SpecError:
        return
    found.message()


def read_slots(data: bytes) -> None:
    try:
        found = Expected.from_json(text_of(data))
    except SpecError:
        return
    assert Expected.from_json(found.to_json()) == found
    assert len(found.every) >= len(found.slots)


def read_manifest(data: bytes) -> None:
    try:
        job = parsing.parse(text_of(data))
        run_file(job)
    except SpecError:
        return
    parsing.nowhere(job)
    parsing.on_a_cluster(job)
    parsing.on_this_machine(job)


def read_object(document: Any) -> None:
    """As the API server gives it, which knows the schema only as far as it is written."""
    try:
        parsing.from_object(document, stored=True)
    except SpecError:
        return


def read_change(change: str) -> None:
    try:
        parsing.parse(json.dumps(MANIFEST), (change,))
    except SpecError:
        return


def read_plan(data: bytes) -> None:
    try:
        faults = chaos.read_plan(text_of(data), ["eu-west-0"], ["shard-0", "shard-1"])
    except SpecError:
        return
    json.dumps([str(each) for each in faults], allow_nan=False)
    assert all(each.at < float("inf") and each.seconds < float("inf") for each in faults)


PATHS: Final = ("spec.steps", "spec.sync", "spec.regions.0.learners", "spec.learner.template", "")
TARGETS: Final[dict[str, Target]] = {
    "run file": (texts([loaded(each) for each in RUN_FILES]), read_run_file),
    "length file": (
        texts([{"revision": 3, "steps": 5}, {"revision": 1, "tokens": 9}]),
        read_length,
    ),
    "slots file": (texts([loaded(SLOTS)]), read_slots),
    "manifest": (yamls(MANIFEST), read_manifest),
    "object of the API server": (mutated_documents([MANIFEST]), read_object),
    "change of a manifest": (
        st.tuples(st.sampled_from(PATHS), yamls(MANIFEST["spec"])).map(
            lambda each: f"{each[0]}={text_of(each[1])}"
        ),
        read_change,
    ),
    "chaos plan": (yamls(PLAN), read_plan),
}


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_stands_in_a_file_is_taken_or_refused_in_words(target: str) -> None:
    check_short(TARGETS[target], 60)


# ------------------------------------------------------------ what was found

DEEP: Final = "[" * 2_000
BOMB: Final = "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['x'] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "&a [*a]",
        BOMB,
        "spec: 2026-99-99",
        "spec: !!int ''",
        "spec: !!timestamp x",
        "? [a]\n: b",
        "\ud800",
    ],
)
def test_yaml_that_nobody_can_read_is_refused_in_words(text: str) -> None:
    with pytest.raises(SpecError, match="plan: "):
        parsing.yaml_document(text, "plan")


def test_metadata_that_is_no_mapping_is_refused_in_words() -> None:
    with pytest.raises(SpecError, match="metadata: must be a mapping"):
        parsing.from_object({**MANIFEST, "metadata": 5})


@pytest.mark.parametrize("read", [loads, mapping])
def test_json_that_is_nested_too_deep_is_a_value_error(read: Any) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        read("[" * 100_000)


def test_the_samples_are_taken() -> None:
    """Else each of their edits would be refused for the same reason."""
    assert run_file(parsing.parse(json.dumps(MANIFEST))).checkpoint
    assert chaos.read_plan(json.dumps(PLAN), ["eu-west-0"], ["shard-0", "shard-1"])
    assert Expected.from_json(SLOTS.to_json()) == SLOTS
