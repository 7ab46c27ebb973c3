"""`atoll edit`, `suspend`, `resume`, `stop` and `delete`: what a person decides of a run.

All act on the manifest, that of a run folder, here or on the machine of `atoll serve`, or the
object of a cluster, and whoever runs the job follows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from atoll_operator.api.job import field_rules, parsing
from atoll_operator.cli.run_or_job import (
    JOB_NAME,
    Context,
    JobArgument,
    Namespace,
    Token,
    Which,
    folder_of,
    served_at,
)
from atoll_operator.local.planning import edits
from atoll_operator.machines.server.changing import (
    RunFolder,
    ended_at,
    fields,
    must_not_be_complete,
)
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.client import JobClient

Learners = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGION=NUMBER", help="Number of learners in a region, as eu=3. Repeatable."
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Length of the training, in steps.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Length of the training, in tokens.")]


class Changeable(Protocol):
    """A run as its kind changes it; `edit` and `stop` return what is another now, in words."""

    def edit(
        self, learners: Mapping[str, int], steps: int | None, tokens: int | None
    ) -> Sequence[str]: ...

    def suspend(self, wanted: bool) -> None: ...

    def stop(self) -> Sequence[str]: ...


def edit(
    which: Which,
    learners: Learners = None,
    steps: Steps = None,
    tokens: Tokens = None,
    token: Token = "",
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Change the learners or the length of a run, also while it trains.

    Learners come and go, and nobody else starts again. A run that is beyond a shorter length ends
    at once.
    """
    if not (learners or steps or tokens):
        remedy = "give --learners, --steps or --tokens"
        raise SpecError("atoll edit", "nothing is to change", remedy)
    numbers = dict(map(_learners, learners or ()))
    _say(which, _run(which, token, namespace, context).edit(numbers, steps, tokens))


def suspend(
    which: Which, token: Token = "", namespace: Namespace = "", context: Context = ""
) -> None:
    """End a run's learners and shards, and keep the run: `atoll resume` continues it."""
    _run(which, token, namespace, context).suspend(True)
    typer.echo(f"{which}: will suspend; `atoll resume {which}` continues its run")


def resume(
    which: Which, token: Token = "", namespace: Namespace = "", context: Context = ""
) -> None:
    """Continue a suspended run from its last commits."""
    _run(which, token, namespace, context).suspend(False)
    typer.echo(f"{which}: will continue")


def stop(which: Which, token: Token = "", namespace: Namespace = "", context: Context = "") -> None:
    """End a run where it is, as complete: its length becomes what it has trained.

    Every slice has its last round, and the model is exported.
    """
    _say(which, _run(which, token, namespace, context).stop())
    typer.echo(f"{which}: will end, and export its model")


def delete(job: JobArgument, namespace: Namespace = "", context: Context = "") -> None:
    """Delete a job with all that it owns; volume claims stay unless the manifest says otherwise."""
    if JOB_NAME.fullmatch(job) is None:
        remedy = "give the name of a job in a cluster; Ctrl-C stops a run of `atoll run`"
        raise SpecError(job, "is not the name of a job", remedy)
    _client(namespace, context).delete(job)
    typer.echo(f"{job}: deleted")


def _run(which: str, token: str, namespace: str, context: str) -> Changeable:
    served = served_at(which, token, namespace, context)
    if served is not None:
        return served
    folder = folder_of(which, namespace, context)
    if folder is not None:
        return RunFolder(folder, which)
    return ClusterJob(which, _client(namespace, context))


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job of a cluster, as its object is changed."""

    name: str
    jobs: "JobClient"

    def edit(
        self, learners: Mapping[str, int], steps: int | None, tokens: int | None
    ) -> Sequence[str]:
        return self._edit(fields(learners, steps, tokens))

    def suspend(self, wanted: bool) -> None:
        """Also of a job whose manifest is not accepted."""
        (self.jobs.suspend if wanted else self.jobs.resume)(self.name)

    def stop(self) -> Sequence[str]:
        job = self.jobs.get(self.name)
        return self._edit(ended_at(job.status, by_tokens="tokens" in job.manifest["spec"]))

    def _edit(self, changes: Sequence[str]) -> Sequence[str]:
        job = self.jobs.get(self.name)
        must_not_be_complete(self.name, job.status)
        text = json.dumps(job.manifest)
        before = parsing.from_object(parsing.document_in(text), stored=True)
        document = parsing.document_in(text, tuple(changes))
        after = parsing.from_object(document, stored=True)
        field_rules.check_edit(before, after)
        changed = {change.split(".")[1].partition("=")[0] for change in changes}
        self.jobs.edit(job, {field: document["spec"][field] for field in changed})
        return edits.differences(before, after)


def _say(which: str, lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(f"{which}: {line}")


def _learners(given: str) -> tuple[str, int]:
    region, _, number = given.partition("=")
    if not (region and number.isdecimal()):
        raise SpecError(f"--learners {given}", "is no number of a region", "write it as eu=3")
    return region, int(number)


def _client(namespace: str, context: str) -> "JobClient":
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    return JobClient(namespace, context)
