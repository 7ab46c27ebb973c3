"""The CRD's file equals the models, and both refuse the same manifests in the same words."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.api import crd, rules
from atoll_operator.api.manifest import parse
from atoll_protos.errors import SpecError
from unit.kube.cluster_values import MANIFEST

FILE = Path(__file__).resolve().parents[3] / "crds/decoupledtrainingjobs.yaml"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == crd.text(), "run python -m atoll_operator.api.crd > crds/..."


def test_it_has_what_kubectl_shows() -> None:
    definition = yaml.safe_load(FILE.read_text())["spec"]
    (version,) = definition["versions"]
    assert definition["names"]["shortNames"] == ["dtj"]
    assert version["subresources"] == {"status": {}}
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert names == ["State", "Learners", "Step", "Progress", "Loss", "Syncer", "Age"]


def test_no_schema_has_what_a_structural_one_must_not() -> None:
    def look(node: object) -> None:
        if isinstance(node, dict):
            assert not {"$ref", "$defs", "anyOf", "const", "title"} & node.keys()
            for value in node.values():
                look(value)
        elif isinstance(node, list):
            for value in node:
                look(value)

    version = crd.definition()["spec"]["versions"][0]
    look(version["schema"])


def test_every_field_has_a_description_that_says_more_than_its_name() -> None:
    def look(path: str, node: dict[str, Any]) -> None:
        for name, inner in node.get("properties", {}).items():
            words = inner.get("description", "").split()
            assert len(words) >= 3, f"{path}.{name} needs a description"
            look(f"{path}.{name}", inner.get("items", inner))

    look("spec", crd.schema()["properties"]["spec"])
    look("status", crd.status_schema())


def test_the_file_is_small_enough_for_client_side_apply() -> None:
    assert len(json.dumps(crd.definition())) < 100_000  # kubectl's annotation holds 256 KiB


def test_no_text_that_a_user_sees_cites_a_rule_by_its_number() -> None:
    assert not re.search(r"\b[Rr]ule \d|PROTOCOL|ALGORITHM", crd.text())


REFUSED = [
    (("spec.tokens=5",), rules.RULES[0]),
    (("spec.syncer.region=mars",), rules.RULES[1]),
    (("spec.syncer.endpoints=[a:1]",), rules.RULES[2]),
    (("spec.syncer.tls={mode: Disabled, issuerRef: {name: x}}",), rules.RULES[3]),
    (("spec.sync.quorum=4",), rules.RULES[4]),
    (("spec.sync.fragments=17",), rules.RULES[5]),
    (("spec.sync.overlap=16",), rules.RULES[6]),
    ((f"metadata.name={'a' * 45}",), rules.RULES[7]),
    ((f"metadata.name={'a' * 40}", "spec.learner.hosts=2"), rules.RULES[8]),
    (("spec.learner.hosts=2", "spec.learner.hostsMin=3"), rules.RULES[9]),
    (("spec.learner.topologyKey=rack",), rules.RULES[10]),
    (("metadata.name=a.b",), rules.RULES[11]),
    (("spec.regions=[{name: us-east}, {name: syncer-0}]",), rules.RULES[12]),
    (("spec.restore={fromJob: {name: old}}",), rules.RULES[13]),
    (("spec.syncer.endpoints=['[fd00::1]:7700', 'fd00::2:7700']",), rules.RULES[14]),
]


@pytest.mark.parametrize(("changes", "rule"), REFUSED)
def test_validate_says_what_the_api_server_says(changes: tuple[str, ...], rule: rules.Rule) -> None:
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


def test_every_rule_is_in_the_table() -> None:
    assert [rule for _, rule in REFUSED] == list(rules.RULES)


def test_a_file_may_hold_other_objects_and_one_job() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\n---\n"
    assert parse(claim + MANIFEST).name == "tiny"
    with pytest.raises(SpecError, match="holds 2 jobs"):
        parse(f"{MANIFEST}---\n{MANIFEST}")


def test_no_default_stands_in_an_entry_of_a_list() -> None:
    """Argo CD and Terraform compare lists as a whole: what is filled in would be drift for ever."""

    def look(path: str, node: dict[str, Any], inside: bool) -> None:
        assert not (inside and "default" in node), path
        for name, inner in node.get("properties", {}).items():
            look(f"{path}.{name}", inner, inside)
        if "items" in node:
            look(f"{path}[]", node["items"], True)

    spec = crd.schema()["properties"]["spec"]
    look("spec", spec, False)
    learners = spec["properties"]["regions"]["items"]["properties"]["learners"]
    assert "Default: 1." in learners["description"]
