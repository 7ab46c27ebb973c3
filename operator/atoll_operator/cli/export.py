"""`atoll export`: the model of a run as it is now, in a folder that the libraries load."""

import json
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from atoll_operator.cli.which import Which
from atoll_operator.local import folder as folders
from atoll_operator.local import logs as files
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode

if TYPE_CHECKING:
    from atoll_operator.kube.shards import Shards

MODULE = "atoll_syncer.exporting"
PROGRAM = (sys.executable, "-P", "-m", MODULE)
READ_BYTES = 1 << 20
INDEX = "*.safetensors.index.json"


def export(
    which: Which,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not be there.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of a job; left out, as for kubectl.")
    ] = "",
    context: Annotated[str, typer.Option(help="Of the kubeconfig, for a job.")] = "",
) -> None:
    """Write the model of a run as it is now; of a run that is over, its final one.

    A job that trains goes on untouched: its shards are read as an evaluator reads them. Slices are
    merged at different times, and each is the newest one. The tick is in the index. In a cluster a
    shard's pod reads them, and the model comes here through `kubectl exec`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError("--out", f"{out} is not empty", "give a new folder")
    if not (namespace or context):
        if files.holds_run(Path(which)):
            raise typer.Exit(_of_folder(Path(which), out))
        if Path(which).is_dir():
            remedy = "give the folder of a run, or the name of a job; with -n it is a job's"
            raise SpecError(which, "holds no run", remedy)
    from atoll_operator.kube.shards import shards_of  # noqa: PLC0415 - slow to import

    found = shards_of(which, namespace, context)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise typer.Exit(_from_here(found, context, out))
    raise typer.Exit(_in_pod([*found.command(kubectl, context), MODULE, "--out", "-"], out))


def _in_pod(command: list[str], out: Path) -> int:
    """Take the export in a shard's pod, and write here what comes of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            problem = _unpack(process.stdout, hidden)
        if process.returncode or problem:
            said = f"ended with {process.returncode}" if process.returncode else problem
            typer.echo(f"no export was taken: `{shlex.join(command)}` {said}", err=True)
            return process.returncode or ExitCode.TRY_AGAIN
        if out.exists():
            out.rmdir()
        hidden.rename(out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    typer.echo(f"{out}: written")
    return 0


def _unpack(stream: IO[bytes], folder: Path) -> str:
    """Why what came is no whole export; empty: it is one."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        return f"sent no whole export ({error})"
    finally:
        while stream.read(READ_BYTES):
            pass  # the program ends by itself
    return "" if any(folder.glob(INDEX)) else "sent an export without its index"


def _from_here(found: "Shards", context: str, out: Path) -> int:
    """Read the shards from this machine, as a process inside the cluster can."""
    code = _take(found.run_file, found.endpoints, out)
    if code:
        there = shlex.join(found.command("kubectl", context))
        typer.echo(
            "The shards are reachable inside the cluster. Install kubectl and try again, or run"
            f" this where it is:\n  {there} {MODULE} --out - | tar -x -C FOLDER\n"
            "or set spec.export.everySteps in the manifest.",
            err=True,
        )
    return code


def _of_folder(run: Path, out: Path) -> int:
    """Of a run on this machine: what its shards hold, or its final export if it is over."""
    final = run / "export"
    if folders.is_run(run) and not any(final.glob(INDEX)):
        rows = json.loads((run / "processes.json").read_text(encoding="utf-8"))
        endpoints = [row["endpoint"] for row in rows if row["role"] == "shard"]
        return _take((run / "run.json").read_text(encoding="utf-8"), endpoints, out)
    if not any(final.glob(INDEX)):
        problem = "is stopped, and has not come to its end"
        raise SpecError(str(run), problem, f"continue with `atoll run {run} --resume`")
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
