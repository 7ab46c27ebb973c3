"""A manifest's file becomes a document, and a document a checked job."""

from pathlib import Path
from typing import Any

from atoll_operator.api import manifest, runfile, support
from atoll_operator.api.spec import Job
from atoll_protos.errors import SpecError


def read_text(file: Path) -> str:
    """The text of a manifest's file; raises SpecError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The job in a file, checked as far as any executor needs; raises SpecError."""
    return checked(manifest.document_in(read_text(file), changes))


def checked(document: dict[str, Any]) -> Job:
    """The job of a document, checked as far as any executor needs; raises SpecError."""
    job = manifest.from_object(document)
    refused = support.nowhere(job)
    if refused is not None:
        raise refused
    runfile.run_file(job)
    return job
