"""The last status of a run folder, and whether its run can continue with a manifest."""

from pathlib import Path

from atoll_operator.api.status.job_status import Status
from atoll_operator.local import local_status
from atoll_operator.local.run_files import STATUS_FILE, STORE_FILE, continued_by
from atoll_operator.local.run_folder import is_run
from atoll_protos import documents
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile


def read_status(out: Path) -> Status:
    """Return the last status, which says Suspended if nothing runs any more; raises SpecError."""
    alive = is_run(out)  # asked first: what ends after it has written its last status
    file = out / STATUS_FILE
    try:
        found = Status.read(documents.mapping(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecError(str(out), f"has no {file.name}", "give the folder of a run") from error
    except ValueError as error:
        raise SpecError(str(file), f"cannot be read ({error})", "continue the run") from error
    over = any(found.true_condition(kind) for kind in ("Complete", "Failed", "Suspended"))
    if alive or over:
        return found
    return local_status.suspended(found, "it was killed", continued_by(out))


def check_same(wanted: RunFile, had: RunFile, out: Path) -> None:
    if had.hash != wanted.hash:
        problem = f"this, or spec.seed or spec.syncer.shards, differs from the run in {out}"
        raise SpecError("spec.sync", problem, "resume with the manifest that it was started with")


def uid_in(out: Path) -> str:
    """UID of a run whose state is in a bucket, which names its folder there."""
    return _store(out)[1]


def check_same_store(url: str, out: Path) -> None:
    """`url`: of the manifest's bucket. Elsewhere a run would begin anew, or lose what it has."""
    had = _store(out)[0]
    if had != url:
        problem = f"is {url or 'not given'}, and the run in {out} has its state in {had or out}"
        remedy = "resume with the storage that it was started with"
        raise SpecError("spec.syncer.storage.url", problem, remedy)


def _store(out: Path) -> tuple[str, str]:
    """URL of the bucket and UID of the run; both empty: the state is in the run folder."""
    file = out / STORE_FILE
    place = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    url, _, uid = place.rpartition("/")
    return url, uid
