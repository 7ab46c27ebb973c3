"""What another user of this machine gets of a run: JSON, by the attempt.

It begins as root, so that it can import what it needs, and is user `nobody` from then on. Nothing
of what it is given is secret: `/proc/net/unix` and `/proc/net/tcp` show where shards listen.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from atoll_protos.network.channels import control_options, open_blocking_channel
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub

NOBODY: Final = 65_534
CALL_SECONDS_MAX: Final = 60.0  # an answer that is late is no refusal


def main(out: Path, endpoint: str, run_hash: str, slot: str) -> None:
    channel = open_blocking_channel(endpoint, control_options())
    syncer, registrar = SyncerStub(channel), RegistrarStub(channel)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    join = pb.Join(protocol=PROTOCOL, run_hash=run_hash, slot=slot, uid="evil", instance="evil")
    calls: dict[str, Callable[[], Any]] = {
        "Export": lambda: [
            *syncer.Export(pb.ExportRequest(run_hash=run_hash), timeout=CALL_SECONDS_MAX)
        ],
        "Join": lambda: next(
            syncer.Session(iter([pb.ToShard(join=join)]), timeout=CALL_SECONDS_MAX)
        ),
        "Status": lambda: syncer.Status(
            pb.StatusRequest(intent=pb.INTENT_FAIL, why="evil"), timeout=CALL_SECONDS_MAX
        ),
        "SetOwner": lambda: registrar.SetOwner(
            pb.SetOwnerRequest(slot=slot, uid="evil"), timeout=CALL_SECONDS_MAX
        ),
    }
    got = {name: _called(call) for name, call in calls.items()}
    readable = [str(path.relative_to(out)) for path in _below(out) if os.access(path, os.R_OK)]
    sys.stdout.write(json.dumps({"calls": got, "readable": sorted(readable)}))


def _called(call: Callable[[], Any]) -> str:
    try:
        return f"OK, {len(str(call()))} characters"
    except grpc.RpcError as error:
        return str(error.code().name) if isinstance(error, grpc.Call) else str(error)


def _below(folder: Path) -> list[Path]:
    """All that is seen in it, as far as the user may look."""
    return [Path(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
