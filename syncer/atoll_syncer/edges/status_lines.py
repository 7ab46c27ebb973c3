"""What a person wants to see of a running job: `python -m atoll_syncer.edges.status_lines`.

`atoll top JOB` runs it there through `kubectl exec`, because the shards' addresses and certificates
mean something only inside of the cluster. It writes a line of JSON for each shard: its StatusReply,
or `shard` and `problem` where none came.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf import json_format

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.network import channels
from atoll_protos.network.addresses import endpoints_of
from atoll_protos.network.channels import Folder, control_options, details_of
from atoll_protos.network.credentials import OutOfDateError
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

ANSWER_SECONDS: Final = 3.0


async def ask(endpoints: Iterable[str], folder: Folder) -> list[dict[str, Any]]:
    """One answer for each shard, as JSON has it. Raises SpecError for credentials."""
    credentials = folder.read()

    async def one(shard: int, endpoint: str) -> dict[str, Any]:
        async with channels.open_channel(endpoint, control_options(), credentials) as channel:
            stub = SyncerStub(channel)
            try:
                reply = await stub.Status(pb.StatusRequest(), timeout=ANSWER_SECONDS)
            except grpc.aio.AioRpcError as error:
                problem = f"{error.code().name}: {details_of(error)}"
                return {"shard": shard, "problem": f"{endpoint} does not answer ({problem})"}
        found: dict[str, Any] = json_format.MessageToDict(reply, preserving_proto_field_name=True)
        found.pop("must_equal", None)  # long, and of no use here
        return {**found, "shard": shard}

    return list(await asyncio.gather(*(one(*each) for each in enumerate(endpoints))))


def main() -> None:
    """Write the lines; the reason of a failure is one line."""
    parser = argparse.ArgumentParser(prog="atoll_syncer.edges.status_lines", description=__doc__)
    parser.add_argument("--endpoints", default=os.environ.get(Env.ENDPOINTS, ""))
    parser.add_argument("--tls-dir", default=os.environ.get(Env.TLS_DIR, ""))
    flags = parser.parse_args()
    try:
        found = asyncio.run(ask(endpoints_of(flags.endpoints), Folder(path=flags.tls_dir)))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(ExitCode.BAD_INPUT)
    except (OSError, OutOfDateError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(ExitCode.TRY_AGAIN)
    sys.stdout.writelines(json.dumps(each) + "\n" for each in found)


if __name__ == "__main__":
    main()
