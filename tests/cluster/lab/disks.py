"""A CSI driver whose volumes are folders of this machine, for one node: `disks.py NODE FOLDER`.

It runs in the node's namespaces and answers what the kubelet asks, of which it needs no more than
some strings: it reads and writes them by the numbers that their fields have in `csi.proto` and in
the kubelet's `pluginregistration`.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

DRIVER = "volumes.atoll.test"
KUBELET = Path("/var/lib/kubelet")  # of each node its own
SOCKET = KUBELET / "plugins" / DRIVER / "csi.sock"
REGISTERED = KUBELET / "plugins_registry" / f"{DRIVER}.sock"
VOLUME, PUBLISHED_AT, UNPUBLISHED_AT = 1, 4, 2  # the fields that are read

Answer = Callable[[Mapping[int, bytes]], bytes]  # a request's fields by number, to the reply


def serve(node: str, folder: Path) -> None:
    """Answer the kubelet of a node until the node is off; volumes are folders in this one."""

    def publish(request: Mapping[int, bytes]) -> bytes:
        target = Path(request[PUBLISHED_AT].decode())
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", folder / request[VOLUME].decode(), target], check=True)
        return b""

    def unpublish(request: Mapping[int, bytes]) -> bytes:
        target = Path(request[UNPUBLISHED_AT].decode())
        subprocess.run(["umount", target], check=False)  # it may be asked again
        if target.exists():
            target.rmdir()
        return b""

    plugin = field(1, "CSIPlugin") + field(2, DRIVER) + field(3, str(SOCKET)) + field(4, "1.0.0")
    registration = {"GetInfo": lambda _: plugin, "NotifyRegistrationStatus": lambda _: b""}
    own = {
        "NodeGetInfo": lambda _: field(1, node),
        "NodeGetCapabilities": lambda _: b"",
        "NodePublishVolume": publish,
        "NodeUnpublishVolume": unpublish,
    }
    services = {"pluginregistration.Registration": registration, "csi.v1.Node": own}
    server = grpc.server(ThreadPoolExecutor(2))
    for service, answers in services.items():
        known = {method: handler(answer) for method, answer in answers.items()}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, known)])
    for path in (SOCKET, REGISTERED):
        path.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{path}")
    server.start()
    server.wait_for_termination()


def field(number: int, text: str) -> bytes:
    """A string of fewer than 128 bytes as a field of a message."""
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def handler(answer: Answer) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Answer a call with the fields of its request, which are unknown to the type Empty."""

    def reply(request: bytes, context: grpc.ServicerContext) -> bytes:
        fields = UnknownFieldSet(Empty.FromString(request))
        return answer({fields[n].field_number: fields[n].data for n in range(len(fields))})

    return grpc.unary_unary_rpc_method_handler(reply)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
