"""The defaults of a manifest and those of the run file are one setting: the published one."""

from atoll_operator.api.manifest import parse
from atoll_operator.api.runfile import run_file
from atoll_protos.run import Sync

MANIFEST = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec: {steps: 10, regions: [{name: here}]}
"""


def test_a_manifest_without_sync_gives_the_run_files_own_defaults() -> None:
    assert run_file(parse(MANIFEST)).sync == Sync()
