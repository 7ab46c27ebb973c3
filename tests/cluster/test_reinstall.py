"""The CRD outlives its release: another release installs beside it, and may take it over."""

import subprocess

from cluster.installed import CHART, CRD, RELEASE, Installed
from cluster.kubectl import Kubectl


def test_another_release_leaves_the_crd_and_shows_how_to_take_it_over(
    atoll: Installed, kube: Kubectl
) -> None:
    done = subprocess.run(
        [atoll.helm, f"--kubeconfig={kube.kubeconfig}", "install", "other", str(CHART),
         "--namespace", "elsewhere", "--dry-run=server"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kind: CustomResourceDefinition" not in done.stdout
    assert f"is not this release's (but of atoll-system/{RELEASE})" in done.stdout
    assert f"kubectl annotate --overwrite crd {CRD}" in done.stdout
