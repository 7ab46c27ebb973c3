"""`atoll export`: the model of a run as it is now, in a folder that the libraries load."""

import secrets
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import urlsplit

import typer

from atoll_operator.cli.run_or_job import Context, Namespace, Which
from atoll_operator.cli.views import kubectl
from atoll_operator.local import run_folder
from atoll_operator.local import run_folder as files
from atoll_operator.local.run_files import continued_by
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode

READ_BYTES = 1 << 20
INDEX = "*.safetensors.index.json"
FETCH = {  # by the scheme of a URL, what brings the files of a bucket
    "s3": "aws s3 cp --recursive {url} {out}",
    "gs": "gcloud storage cp --recursive {url} {out}",
    "az": "azcopy copy --recursive https://{account}.blob.core.windows.net/{path} {out}",
}


def export(
    which: Which,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder to write; it must not be there.", resolve_path=True),
    ],
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Write the model of a run as it is now; of a run that is over, its final one.

    A job that trains continues untouched: its shards are read as an evaluator reads them. Slices
    are merged at different times, and each is the newest one. The tick is in the index. In a
    cluster a shard's pod reads them, and the model comes here through `kubectl exec`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError("--out", f"{out} is not empty", "give a new folder")
    if not (namespace or context):
        if files.holds_run(Path(which)):
            raise typer.Exit(_of_folder(Path(which), out))
        if Path(which).is_dir():
            remedy = "give the folder of a run, or the name of a job; with -n it is a job's"
            raise SpecError(which, "holds no run", remedy)
    from atoll_operator.client.job_client import shards_of  # noqa: PLC0415 - slow to import

    try:
        found = shards_of(which, namespace, context)
    except SpecError as error:
        raise _in_bucket(which, namespace, context, out) or error from None
    raise typer.Exit(
        in_pod([*found.command(kubectl(), context), files.EXPORTING, "--out", "-"], out)
    )


def _in_bucket(job: str, namespace: str, context: str, out: Path) -> SpecError | None:
    """Where the model of a job that is over lies in a bucket; None: it does not."""
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    with suppress(SpecError):
        status = JobClient(namespace, context).status(job)
        url = status.export_url or ""
        parts = urlsplit(url)
        if status.true_condition("Complete") and parts.scheme in FETCH:
            words = {"url": url, "account": parts.netloc, "path": parts.path.lstrip("/")}
            fetch = FETCH[parts.scheme].format(out=out, **words)
            return SpecError(job, f"is complete, and its model is in {url}", f"fetch it: {fetch}")
    return None


def in_pod(command: list[str], out: Path) -> int:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        problem = _brought(process.stdout, out, process.wait)
    if problem:
        typer.echo(f"no export was taken: `{shlex.join(command)}` {problem}", err=True)
        return process.returncode or ExitCode.TRY_AGAIN
    return 0


def _brought(stream: IO[bytes], out: Path, end: Callable[[], int]) -> str:
    """Why no model came; empty: it is in `out`, which appears whole. `end`: the sender's code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        problem = _unpack(stream, hidden)
        if code := end():
            return f"ended with {code}"
        if problem:
            return problem
        if out.exists():
            out.rmdir()
        hidden.rename(out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    typer.echo(f"{out}: written")
    return ""


def _unpack(stream: IO[bytes], folder: Path) -> str:
    """Why what came is no whole export; empty: it is one."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            _extract(tar, folder)
    except tarfile.TarError as error:
        return f"sent no whole export ({error})"
    finally:
        while stream.read(READ_BYTES):
            pass  # the program ends by itself
    return "" if any(folder.glob(INDEX)) else "sent an export without its index"


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Files and folders alone, and only below `folder`. Python 3.11.2 has no filter for that."""
    for member in tar:
        path = (folder / member.name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise tarfile.TarError(f"{member.name} is not below it")
        data = tar.extractfile(member) if member.isfile() else None
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(data, file)


def _of_folder(run: Path, out: Path) -> int:
    """Of a run on this machine: what its shards hold, or its final export if it is over."""
    final = run / "export"
    if not any(final.glob(INDEX)):
        if run_folder.is_run(run):
            return subprocess.run(files.exporting(run, str(out)), check=False).returncode
        problem = "is stopped, and has not come to its end"
        raise SpecError(str(run), problem, f"continue with `{continued_by(run)}`")
    for file in filter(Path.is_file, final.rglob("*")):
        there = file.relative_to(final)
        if not any(part.startswith(".") or part == "parts" for part in there.parts):
            (out / there.parent).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / there)  # and not its mode: `out` may be for others
    typer.echo(f"{out}: the final model")
    return 0
