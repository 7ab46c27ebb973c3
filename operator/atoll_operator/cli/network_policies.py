"""`atoll network-policies`: what keeps the hosts of each learner to themselves."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from atoll_operator.api import manifest
from atoll_operator.cli.reading import checked, read_text
from atoll_protos.errors import SpecError


def network_policies(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
) -> None:
    """Print a NetworkPolicy for each learner of several hosts: its hosts reach each other.

    Apply them in the namespace of the job, and again after an edit of its learners. They replace
    one of the chart's policies, which lets hosts of all jobs of a namespace reach each other
    (networkPolicy.jobs.hosts). Without the others, which let learners reach DNS and shards, these
    cut them off.
    """
    from atoll_operator.kube.policies import of_hosts  # noqa: PLC0415 - slow to import

    document = manifest.document_in(read_text(file))
    found = of_hosts(checked(document))
    if not found:
        problem = "is 1, and learners of one host reach nobody but shards"
        raise SpecError("spec.learner.hosts", problem, "the chart's network policies are enough")
    namespace = (document.get("metadata") or {}).get("namespace")
    for each in found:
        if namespace:
            each["metadata"]["namespace"] = namespace
    typer.echo(yaml.safe_dump_all(found, sort_keys=False), nl=False)
