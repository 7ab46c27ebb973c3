"""Names that more than one program says: slots, exit codes, environment variables."""

import re
from enum import IntEnum
from typing import Final

from atoll_protos.errors import SpecError

PROTOCOL: Final = 1
REGISTRAR_SHARD: Final = 0
DIGEST_DIGITS: Final = 16  # of a digest, where it only tells two values of one number apart

REGION_PATTERN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SLOT_PATTERN: Final = re.compile(rf"{REGION_PATTERN.pattern}-(0|[1-9][0-9]*)")


class ExitCode(IntEnum):
    """What a process of a job says as it ends (DESIGN.md, Completion)."""

    FINAL = 0
    BAD_INPUT = 64
    OTHER_JOB = 65  # another layout or run
    BUG = 70
    TRY_AGAIN = 75
    SUPERSEDED = 77


# Starting the process again cannot help: it idles, and the job's condition says Failed.
# A bug is not among them: it crashes and starts again, and costs nobody else anything.
PERMANENT_EXITS: Final = frozenset({ExitCode.BAD_INPUT, ExitCode.OTHER_JOB})


class Env:
    """Environment variables of a learner's, observer's or shard's process."""

    RUN_FILE: Final = "ATOLL_RUN_FILE"
    ENDPOINTS: Final = "ATOLL_ENDPOINTS"  # host:port by shard, comma-separated
    SLOT: Final = "ATOLL_SLOT"
    REGION: Final = "ATOLL_REGION"
    UID: Final = "ATOLL_UID"
    INSTANCE: Final = "ATOLL_INSTANCE"
    TELEMETRY_DIR: Final = "ATOLL_TELEMETRY_DIR"
    SHARD: Final = "ATOLL_SHARD"  # of a shard, as of here: the defaults of its flags
    LISTEN: Final = "ATOLL_LISTEN"  # host:port
    STORE: Final = "ATOLL_STORE"
    TAPE: Final = "ATOLL_TAPE"
    EXPORT: Final = "ATOLL_EXPORT"
    METRICS_PORT: Final = "ATOLL_METRICS_PORT"


class Label:
    """Labels of what a job owns in a cluster, beside `app.kubernetes.io/*`."""

    JOB: Final = "atoll.dev/job"
    REGION: Final = "atoll.dev/region"
    ROLE: Final = "atoll.dev/role"  # learner, shard, evaluator
    SHARD: Final = "atoll.dev/shard"


def slot_name(region: str, ordinal: int) -> str:
    """`us-east`, 0 -> `us-east-0`."""
    return f"{region}-{ordinal}"


def split_slot(slot: str) -> tuple[str, int]:
    """`us-east-0` -> (`us-east`, 0); raises SpecError for anything else."""
    if SLOT_PATTERN.fullmatch(slot) is None:
        raise SpecError("slot", f"{slot!r} is no slot", "name it REGION-ORDINAL, as in us-east-0")
    region, _, ordinal = slot.rpartition("-")
    return region, int(ordinal)
