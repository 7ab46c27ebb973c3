"""Names that more than one program uses: slots, the registrar's shard, labels."""

import re
from typing import Final

from atoll_protos.errors import SpecError

PROTOCOL: Final = 4  # 3: averaged buffers travel in f32; 4: lengths come from shards alone
REGISTRAR_SHARD: Final = 0
LANES_MAX: Final = 256  # Bulk streams of a session (rule 34)
DATA_STATE_BYTES_MAX: Final = 1 << 20  # what a learner's script keeps with its cursor (rule 28)
ALIVE: Final = "alive"  # a health service of a shard: it also serves while the process waits
STARTED_PATH: Final = "/started"  # of a launcher's answers: to whether it has started, which waits
COUNTER_MAX: Final = (1 << 53) - 1  # of what a peer counts: sums of such numbers still fit
DIGEST_DIGITS: Final = 16  # of a digest, where it only tells two values of one number apart

REGION_PATTERN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SLOT_PATTERN: Final = re.compile(rf"{REGION_PATTERN.pattern}-(0|[1-9][0-9]{{0,8}})")


class Label:
    """Labels of what a job owns in a cluster, besides `app.kubernetes.io/*`."""

    JOB: Final = "atoll.dev/job"
    JOB_UID: Final = "atoll.dev/job-uid"  # tells a job from a former one of the same name
    REGION: Final = "atoll.dev/region"
    ROLE: Final = "atoll.dev/role"  # learner, shard, evaluator
    SHARD: Final = "atoll.dev/shard"
    SLOT: Final = "atoll.dev/slot"  # of the pods of a learner of several hosts, and of their set


def slot_name(region: str, ordinal: int) -> str:
    return f"{region}-{ordinal}"


def split_slot(slot: str) -> tuple[str, int]:
    """`us-east-0` -> (`us-east`, 0). Raises SpecError."""
    if SLOT_PATTERN.fullmatch(slot) is None:
        raise SpecError("slot", f"{slot!r} is no slot", "name it REGION-ORDINAL, as in us-east-0")
    region, _, ordinal = slot.rpartition("-")
    return region, int(ordinal)
