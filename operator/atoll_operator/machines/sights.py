"""Which files of a run folder may leave its machine, by what is looked at; and no others.

Callers name what they look at, never a file. Both sides hold to the list: the server for what it
sends, the caller for what it writes. The manifest is not in it, as it may have secrets among its
variables, and nothing of `machines/` is.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.folder.run_files import RUN_FILE, STATUS_FILE
from atoll_operator.local.progress.machines import MACHINES_FILE

FILES: Final[Mapping[int, tuple[str, ...]]] = {
    pb.SIGHT_STATUS: (RUN_FILE, STATUS_FILE),
    pb.SIGHT_LOGS: (RUN_FILE, "processes.json", "logs/*.log"),
    pb.SIGHT_CURVES: (
        RUN_FILE,
        "evaluations.jsonl",
        "learners/*.jsonl",
        "syncer/*.tape.jsonl",
    ),
    pb.SIGHT_SHARDS: (MACHINES_FILE,),
}


def shows(sight: int, name: str) -> bool:
    """Whether a file of this name, below the run folder, belongs to it."""
    parts = PurePosixPath(name).parts
    return name == "/".join(parts) and any(
        len(parts) == len(of := PurePosixPath(pattern).parts)
        and all(fnmatchcase(part, one) for part, one in zip(parts, of, strict=True))
        for pattern in FILES.get(sight, ())
    )
