"""A manifest's file becomes a checked job."""

from pathlib import Path

from atoll_operator.api import manifest, runfile, support
from atoll_operator.api.spec import Job
from atoll_protos.errors import SpecError


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The job in a file, checked as far as any executor needs; raises SpecError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error
    job = manifest.parse(text, changes)
    refused = support.nowhere(job)
    if refused is not None:
        raise refused
    runfile.run_file(job)
    return job
