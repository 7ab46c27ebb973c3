"""The cluster of somebody's kubeconfig: an API on loopback, as a person's commands ask it."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from unit.kube.api_server import kubeconfig as config_of

Raw = dict[str, Any]
COLLECTIONS = {  # of the namespace team, by the kind of their objects
    "Pod": "/api/v1/namespaces/team/pods",
    "ConfigMap": "/api/v1/namespaces/team/configmaps",
    "Secret": "/api/v1/namespaces/team/secrets",
    "Job": "/apis/atoll.dev/v1alpha1/namespaces/team/decoupledtrainingjobs",
}
PAGE = 2  # objects: a server may give less than was asked for


@dataclass
class Cluster:
    """Objects by path; every request is noted."""

    objects: dict[str, Raw] = field(default_factory=dict)
    refusals: list[tuple[int, Raw]] = field(default_factory=list)  # of the next requests
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)  # by how a path ends
    asked: list[tuple[str, str]] = field(default_factory=list)

    def put(self, kind: str, name: str, raw: Raw) -> Raw:
        """Make an object; a Secret with its data as they are."""
        metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "generation": 1}
        metadata["resourceVersion"] = "1"
        raw["metadata"] = metadata | raw.get("metadata", {})
        if kind == "Secret":
            raw["data"] = {k: base64.b64encode(v).decode() for k, v in raw["data"].items()}
        self.objects[f"{COLLECTIONS[kind]}/{name}"] = raw
        return raw

    def add_pod(self, name: str, role: str, node: str = "", **labels: str) -> Raw:
        """A pod of the job tiny whose container runs."""
        labels = {"atoll.dev/job": "tiny", "atoll.dev/role": role, **labels}
        status = {"name": "main", "state": {"running": {}}, "image": "", "imageID": "",
                  "ready": False, "restartCount": 0}  # fmt: skip
        return self.put(
            "Pod",
            name,
            {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main"}], "nodeName": node},
                "status": {"phase": "Running", "containerStatuses": [status]},
            },
        )

    def answer(self, verb: str, path: str, query: dict[str, str], body: str) -> tuple[int, str]:
        """The HTTP status and the body."""
        self.asked.append((verb, path))
        if self.refusals:
            status, said = self.refusals.pop(0)
            return status, json.dumps(said)
        for end, (status, message) in self.refused.items():
            if path.endswith(end):
                return status, json.dumps({"message": message})
        if path.rpartition("/")[2] in {each.rpartition("/")[2] for each in COLLECTIONS.values()}:
            return self._collection(path, query)
        if path not in self.objects:
            return 404, json.dumps({"message": f"{path.rpartition('/')[2]} not found"})
        found = self.objects[path]
        if verb == "PATCH":
            patch, had = json.loads(body), found["metadata"].get("resourceVersion")
            if patch.get("metadata", {}).get("resourceVersion", had) != had:
                return 409, json.dumps({"message": "was modified", "reason": "Conflict"})
            _merge(found, patch)
        return 200, json.dumps(found)

    def _collection(self, path: str, query: dict[str, str]) -> tuple[int, str]:
        wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        found = [
            each
            for where, each in self.objects.items()
            if where.rpartition("/")[0] == path
            and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        start, size = int(query.get("continue") or 0), PAGE if "limit" in query else len(found)
        more = str(start + size) if start + size < len(found) else ""
        page = {"items": found[start : start + size], "metadata": {"continue": more}}
        return 200, json.dumps(page)


def _merge(into: Raw, patch: Raw) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@contextmanager
def kubeconfig(file: Path, cluster: Cluster) -> Iterator[None]:
    """Write a kubeconfig of two contexts, `here` with the namespace team, and `other`."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            address = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, body = cluster.answer(self.command, address.path, query, sent)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PATCH = respond  # noqa: N815 - names of http.server

        def log_message(self, *arguments: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        file.write_text(config_of(address, "other", namespace="team"))
        yield
        server.shutdown()
