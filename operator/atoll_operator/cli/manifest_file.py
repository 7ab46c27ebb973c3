"""A manifest's file becomes a document, and a document a checked job."""

from pathlib import Path
from typing import Any

from atoll_operator.api.job import parsing, process_inputs, unsupported
from atoll_operator.api.job.spec import Job
from atoll_protos.errors import SpecError


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The job in a file, checked as far as any executor needs; raises SpecError."""
    return checked(parsing.document_in(read_text(file), changes))


def checked(document: dict[str, Any]) -> Job:
    job = parsing.from_object(document)
    if (refused := unsupported.nowhere(job)) is not None:
        raise refused
    process_inputs.run_file(job)
    return job
