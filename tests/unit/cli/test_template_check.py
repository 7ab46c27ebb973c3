"""`atoll validate` finds what no cluster would take in a pod template, without one."""

import pytest

from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.pod_fields import PodOverrides
from atoll_operator.cli import template_check
from atoll_protos.errors import SpecError
from unit.kube.cluster_values import MANIFEST

POD = "spec.learner.template.spec"
CONTAINER = f"{POD}.containers[0]"
REGION = "spec.regions=[{{name: us-east}}, {{name: eu-west, podOverrides: {}}}]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"{POD}.containers=[{{volumeMount: []}}]", f"{CONTAINER}.volumeMount: is unknown to Kub"),
        (f"{POD}.containers=[{{volumeMount: []}}]", "did you mean volumeMounts?"),
        (f"{POD}.containers=[{{imagepullpolicy: Always}}]", "did you mean imagePullPolicy?"),
        (f"{POD}.nodeselector={{a: b}}", "did you mean nodeSelector?"),
        (f"{POD}.zzz=1", "remove it or fix its spelling"),
        (f"{POD}.containers=[{{resources: {{limit: {{}}}}}}]", f"{CONTAINER}.resources.limit: is"),
        (f"{POD}.volumes={{name: a}}", f"{POD}.volumes: must be a list; write it as a list"),
        (f"{POD}.hostNetwork='yes'", f"{POD}.hostNetwork: must be true or false; write it"),
        (f"{POD}.terminationGracePeriodSeconds='30'", "must be a whole number; write it without"),
        (f"{POD}.terminationGracePeriodSeconds=true", "must be a whole number; write it without"),
        (f"{POD}.serviceAccountName=true", "must be a string; write it in quotes"),
        (f"{POD}.affinity=[]", f"{POD}.affinity: must be a mapping; give it named fields"),
        ("spec.learner.template.metadat={labels: {}}", "did you mean metadata?"),
        ("spec.syncer.template.spec.toleration=[]", "spec.syncer.template.spec.toleration: is"),
        ("spec.evaluator.template.spec.tolerations=[{keys: a}]", "did you mean key?"),
        (
            REGION.format("{volumes: [{name: a, hostpath: {}}]}"),
            "eu-west].podOverrides.volumes[0].h",
        ),
        (REGION.format("{securityContext: {fsgroup: 1}}"), "did you mean fsGroup?"),
        (REGION.format("{containerSecurityContext: {fsGroup: 1}}"), "is unknown to Kubernetes"),
        (REGION.format("{resources: {requets: {}}}"), "did you mean requests?"),
        (REGION.format("{affinity: {nodeAfinity: {}}}"), "did you mean nodeAffinity?"),
    ],
)
def test_a_mistake_in_a_template_is_named_with_what_was_meant(change: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        template_check.check(parse(MANIFEST, (change,)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        f"{POD}.containers=[{{resources: {{limits: {{cpu: 2, nvidia.com/gpu: '8'}}}}}}]",
        f"{POD}.volumes=[{{name: a, emptyDir: {{sizeLimit: 1000}}}}]",
        f"{POD}.containers=[{{livenessProbe: {{httpGet: {{port: http, path: /}}}}}}]",
        f"{POD}.securityContext={{runAsUser: null}}",
        "spec.learner.template.metadata={labels: {a: b}, annotations: {c: d}}",
        REGION.format("{labels: {a: b}, envFrom: [{secretRef: {name: x}}], resourceClaims: []}"),
    ],
)
def test_what_a_cluster_takes_is_not_refused(change: str) -> None:
    template_check.check(parse(MANIFEST, (change,)))


def test_every_field_of_pod_overrides_is_one_of_a_pod_or_of_a_container() -> None:
    known = {
        *template_check._types("V1PodSpec"),
        *template_check._types("V1Container"),
        *template_check.OVERRIDES,
    }
    assert {each.alias for each in PodOverrides.model_fields.values()} <= known
