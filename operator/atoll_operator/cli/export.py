"""`atoll export`: the model of a run as it is now, in a folder that the libraries load."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.local import folder as folders
from atoll_operator.local import logs as files
from atoll_protos.errors import SpecError

PROGRAM = (sys.executable, "-P", "-m", "atoll_syncer.exporting")
INDEX = "*.safetensors.index.json"


def export(
    which: Annotated[
        str,
        typer.Argument(
            metavar="DIR|JOB",
            help="Folder of a run; or name of a job in the cluster of your kubeconfig.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not be there.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of a job; left out, as for kubectl.")
    ] = "",
    context: Annotated[str, typer.Option(help="Of the kubeconfig, for a job.")] = "",
) -> None:
    """Write the model of a run as it is now; of a run that is over, its final one.

    A job that trains goes on untouched: its shards are read as an evaluator reads them. Slices are
    merged at different times, and each is the newest one. The tick is in the index.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError("--out", f"{out} is not empty", "give a new folder")
    if not (namespace or context) and files.holds_run(Path(which)):
        raise typer.Exit(_of_folder(Path(which), out))
    if Path(which).is_dir():
        raise SpecError(which, "holds no run", "give the folder of a run, or the name of a job")
    from atoll_operator.kube.shards import shards_of  # noqa: PLC0415 - slow to import

    found = shards_of(which, namespace, context)
    code = _take(found.run_file, found.endpoints, out)
    if code:
        where = f"kubectl exec -n {found.namespace} {found.pod} -- python -m atoll_syncer.exporting"
        typer.echo(
            "The shards are reachable inside the cluster. Run this there, with a folder of a"
            f" mounted volume:\n  {where} --out FOLDER\n"
            "or set spec.export.everySteps in the manifest.",
            err=True,
        )
    raise typer.Exit(code)


def _of_folder(run: Path, out: Path) -> int:
    """Of a run on this machine: what its shards hold, or its final export if it is over."""
    final = run / "export"
    if folders.is_run(run) and not any(final.glob(INDEX)):
        rows = json.loads((run / "processes.json").read_text(encoding="utf-8"))
        endpoints = [row["endpoint"] for row in rows if row["role"] == "shard"]
        return _take((run / "run.json").read_text(encoding="utf-8"), endpoints, out)
    if not any(final.glob(INDEX)):
        problem = "is stopped, and has not come to its end"
        raise SpecError(str(run), problem, f"go on with `atoll run {run} --resume`")
    shutil.copytree(
        final, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("step-*", ".*", "parts")
    )
    typer.echo(f"{out}: the final model")
    return 0


def _take(run_file: str, endpoints: list[str], out: Path) -> int:
    """Run the program that reads the shards; it tells how it goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    copy = out.with_name(f".{out.name}.run.json")
    copy.write_text(run_file, encoding="utf-8")
    try:
        command = [*PROGRAM, "--run-file", str(copy), "--endpoints", ",".join(endpoints)]
        return subprocess.run([*command, "--out", str(out)], check=False).returncode
    finally:
        copy.unlink(missing_ok=True)
