"""`atoll plan`: what a job needs of networks and machines, before the first step."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.api.job.spec import Spec
from atoll_operator.cli.manifest_file import read_job
from atoll_operator.cli.plan import flags, model_size, tables
from atoll_operator.cli.region_values import by_region
from atoll_operator.sizing import expected
from atoll_operator.sizing.needs import Chips, needs
from atoll_operator.sizing.traffic import Given
from atoll_protos.errors import SpecError, require

OF_FAILURES = "Failures"
OF_MODEL = "The model (one of these)"


def plan(  # noqa: PLR0913, PLR0917 - each argument is an option of the command
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
    step_time: Annotated[
        str,
        typer.Option(
            metavar="SECONDS",
            help="Of a step of the learner that sets the clock.",
            show_default="spec.sizing.stepMilliseconds",
        ),
    ] = "",
    parameters: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="That travel, as in 350M or 12B.",
            show_default="spec.sizing.parameters",
            rich_help_panel=OF_MODEL,
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Builds the model, which is counted on torch's meta device: without its values.",
            rich_help_panel=OF_MODEL,
        ),
    ] = "",
    safetensors: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", exists=True, help="The model's files.", rich_help_panel=OF_MODEL
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION=GBIT,MS",
            help="Gbit/s of each direction and round-trip time of a region's line to the syncer;"
            " once for each. The syncer's own region needs no MS.",
            show_default="the link of each region in the manifest",
        ),
    ] = None,
    egress: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION=PRICE", help="Of a GB that leaves a region; once for each region."
        ),
    ] = None,
    tokens_per_step: Annotated[
        str,
        typer.Option(
            metavar="NUMBER", help="Of a learner, where the manifest has no tokensPerStep."
        ),
    ] = "",
    chips_per_learner: Annotated[
        str, typer.Option(metavar="NUMBER", help="Accelerators.", rich_help_panel=OF_FAILURES)
    ] = "",
    failures_per_chip_year: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="How often a chip, or what belongs to it, fails in a year.",
            rich_help_panel=OF_FAILURES,
        ),
    ] = "",
    recovery_time: Annotated[
        str,
        typer.Option(
            metavar="SECONDS",
            help="From a failure until the learner trains again.",
            show_default="as measured, docs/sizing.md",
            rich_help_panel=OF_FAILURES,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Say what a job needs of networks and machines, what it costs, and what will not hold.

    It only computes: by the formulas of docs/sizing.md, which are averages over a period.
    """
    job = read_job(file)
    given = Given(
        parameters=_parameters(job.spec, parameters, model, safetensors),
        step_seconds=_step_seconds(job.spec, step_time),
        links=expected.links(job.spec) | by_region(flags.link, link or ()),
    )
    found = needs(
        job.spec,
        given,
        prices=by_region(flags.price, egress or ()),
        tokens_per_step=flags.count("--tokens-per-step", tokens_per_step)
        if tokens_per_step
        else None,
        chips=_chips(chips_per_learner, failures_per_chip_year, recovery_time),
    )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    for line in tables.lines(job, found):
        typer.echo(line)


def _step_seconds(spec: Spec, text: str) -> float:
    if text or spec.sizing is None:
        require(bool(text), "--step-time", "is missing", "give it, or spec.sizing in the manifest")
        return flags.positive("--step-time", text, "0.5")
    return spec.sizing.step_milliseconds / 1e3


def _parameters(spec: Spec, number: str, model: str, safetensors: Path | None) -> int:
    given = sum((bool(number), bool(model), safetensors is not None))
    if not given and spec.sizing is not None:
        return spec.sizing.parameters
    require(
        given == 1,
        "--parameters",
        "a model's size is needed once",
        "give --parameters, --model or --safetensors",
    )
    if safetensors is not None:
        return model_size.in_files(safetensors)
    return model_size.of_function(model) if model else flags.count("--parameters", number)


def _chips(number: str, per_year: str, recovery: str) -> Chips | None:
    if not (number or per_year or recovery):
        return None
    for flag, text in (("--chips-per-learner", number), ("--failures-per-chip-year", per_year)):
        if not text:
            raise SpecError(flag, "is missing", "give it for goodput and uptime")
    return Chips(
        per_learner=flags.count("--chips-per-learner", number),
        failures_per_year=flags.positive("--failures-per-chip-year", per_year, "0.1"),
        recovery_seconds=flags.positive("--recovery-time", recovery, "90") if recovery else None,
    )
