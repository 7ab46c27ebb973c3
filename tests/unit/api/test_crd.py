"""The CRD's file equals the models, and both refuse the same manifests in the same words."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.api import crd
from atoll_operator.api.job import field_rules
from atoll_operator.api.job.parsing import parse
from atoll_protos.errors import SpecError
from unit.kube.cluster_values import MANIFEST

FILE = Path(__file__).resolve().parents[3] / "crds/decoupledtrainingjobs.yaml"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == crd.text(), "run python -m atoll_operator.api.crd > crds/..."
    assert len(json.dumps(crd.definition())) < 100_000  # kubectl's annotation holds 256 KiB


def test_it_has_what_kubectl_shows() -> None:
    names = crd.definition()["spec"]["names"]
    (version,) = crd.definition()["spec"]["versions"]
    assert names["shortNames"] == ["dtj"]
    assert version["subresources"] == {"status": {}}
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["State", "Learners", "Step", "Progress", "Loss", "Syncer", "Age"]
    for each in objects(version["schema"]):  # it is a structural one
        assert not {"$ref", "$defs", "anyOf", "const", "title"} & each.keys()


def objects(node: object) -> Iterator[dict[str, Any]]:
    """This one and all in it."""
    inner: Iterable[object] = node if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield node
        inner = node.values()
    for each in inner:
        yield from objects(each)


def test_every_field_has_a_description_that_says_more_than_its_name() -> None:
    def look(path: str, node: dict[str, Any]) -> None:
        for name, inner in node.get("properties", {}).items():
            words = inner.get("description", "").split()
            assert len(words) >= 3, f"{path}.{name} needs a description"
            look(f"{path}.{name}", inner.get("items", inner))

    look("spec", crd.schema()["properties"]["spec"])
    look("status", crd.status_schema())


BUCKET = "spec.syncer.storage={type: ObjectStore, url: 's3://b'"
CHANGES: list[tuple[str, ...]] = [  # each breaks one rule, in the order of RULES
    ("spec.tokens=5",),
    ("spec.syncer.region=mars",),
    ("spec.syncer.endpoints=[a:1]",),
    ("spec.regions=[{name: a, learners: 1000}, {name: b, learners: 1}]", "spec.learner.hosts=10"),
    ("spec.sync.quorum=4",),
    ("spec.sync.fragments=17",),
    ("spec.sync.overlap=16",),
    ("spec.sync.normLimit=1",),
    (f"metadata.name={'a' * 45}",),
    (f"metadata.name={'a' * 40}", "spec.learner.hosts=2"),
    ("spec.learner.hosts=2", "spec.learner.hostsMin=3"),
    ("spec.learner.topologyKey=rack",),
    ("metadata.name=a.b",),
    ("spec.regions=[{name: us-east}, {name: syncer-0}]",),
    ("spec.syncer.endpoints=['[fd00::1]:7700', 'fd00::2:7700']",),
    ("spec.syncer.storage={type: ObjectStore}",),
    ("spec.syncer.storage={url: 's3://b'}",),
    ("spec.syncer.storage={endpoint: 'http://x'}",),
    ("spec.syncer.storage={type: PersistentVolumeClaim, secret: keys}",),
    (f"{BUCKET}, size: 1Gi}}",),
    (f"{BUCKET}, storageClassName: fast}}",),
    (f"{BUCKET}, reclaim: Delete}}",),
]
REFUSED = [*zip(CHANGES, field_rules.RULES, strict=True)]


@pytest.mark.parametrize(("changes", "rule"), REFUSED)
def test_both_refuse_in_the_same_words(changes: tuple[str, ...], rule: field_rules.Rule) -> None:
    with pytest.raises(SpecError) as caught:
        parse(MANIFEST, changes)
    assert str(caught.value) == f"{rule.field}: {rule.problem}; {rule.remedy}"
    text = yaml.safe_dump(crd.schema()["x-kubernetes-validations"]) + yaml.safe_dump(
        crd.schema()["properties"]["spec"]["x-kubernetes-validations"]
    )
    assert rule.remedy in " ".join(text.split())


@pytest.mark.parametrize("host", ["[fd00::2]", "10.0.0.2", "shards.example", "dns:///a.example"])
def test_endpoints_are_names_and_addresses_of_either_family(host: str) -> None:
    endpoints = f"spec.syncer.endpoints=['[::ffff:10.0.0.1]:7700', '{host}:7701']"
    assert parse(MANIFEST, (endpoints,)).spec.syncer.endpoints[1] == f"{host}:7701"


def test_no_default_stands_in_an_entry_of_a_list() -> None:
    """Argo CD and Terraform compare lists as a whole: what is filled in would be drift for ever."""
    spec = crd.schema()["properties"]["spec"]
    lists = [each["items"] for each in objects(spec) if isinstance(each.get("items"), dict)]
    assert lists
    for each in objects(lists):
        assert "default" not in each
    learners = spec["properties"]["regions"]["items"]["properties"]["learners"]
    assert "Default: 1." in learners["description"]
