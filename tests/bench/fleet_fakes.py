"""What a fleet of jobs needs to look alive without a machine: nodes, kubelets and shards.

A pod that the scheduler has placed gets an address and is Ready; one that is being deleted goes. So
StatefulSets and Deployments behave as with real kubelets. Shard 0 of each job listens on a loopback
address of its own, which its pod has, and answers Status for the learners whose pods there are.
"""

import asyncio
import itertools
import json
import ssl
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import Label
from atoll_protos.network.services import Service, add_handlers
from cluster.lab.layout import Cluster

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SHARD_PORT = 7700
GATEWAY_TIMEOUT = 504  # HTTP: what is to be watched is not there yet
RENEW_SECONDS = 5.0
PODS_OF_A_NODE = 500
Object = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class Admin:
    """The administrator's requests to the API server."""

    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: Object | None = None, kind: str = "") -> Any:
        headers = {"Content-Type": kind or "application/json"}
        data = json.dumps(body) if body is not None else None
        async with self.session.request(method, path, data=data, headers=headers) as answer:
            text = await answer.text()
            assert answer.status < 300 or answer.status in (404, 409), f"{method} {path}: {text}"
            return json.loads(text)

    async def watch(self, path: str) -> Any:
        """Events of a collection for ever, what there is first; waits for an API server's start."""
        while True:
            async for event in self._events(path):
                if event["type"] == "ERROR":
                    assert event["object"]["code"] == GATEWAY_TIMEOUT, event
                    break
                yield event
            await asyncio.sleep(1.0)

    async def _events(self, path: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.session.get(f"{path}?watch=true", timeout=timeout) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


def admin(cluster: Cluster) -> Admin:
    context = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    context.load_cert_chain(cluster.pki / "admin.crt", cluster.pki / "admin.key")
    connector = aiohttp.TCPConnector(ssl=context, limit=16)
    return Admin(aiohttp.ClientSession(cluster.server, connector=connector))


@dataclass(slots=True)
class Shard:
    """Shard 0 of a job; `learners` are its slots' pods by name."""

    steps: int
    tick: int = 100
    learners: dict[str, Object] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:  # noqa: N802 - gRPC's
        slots = [
            pb.SlotStatus(
                slot=name,
                uid=pod["uid"],
                state=pb.SLOT_LOST if pod["lost"] else pb.SLOT_TRAINING,
                loss=2.5,
                tokens=self.tick * 1000,
                t_m=self.tick,
                step_seconds=0.5,
                owner_generation=self.generations.get(name, 0),
                owner_uid=self.owners.get(name, ""),
            )
            for name, pod in sorted(self.learners.items())
        ]
        return pb.StatusReply(
            run="run", epoch=1, state=pb.SHARD_SERVING, tick=self.tick, steps=self.steps,
            slots=slots, quorum=1, registrar=True, ticks_per_second=1.0,
            trained=self.tick * 1000 * len(slots),
        )  # fmt: skip

    async def SetOwner(self, request: Any, context: Any) -> pb.SetOwnerReply:  # noqa: N802
        self.generations[request.slot] = request.generation + 1
        self.owners[request.slot] = request.uid
        return pb.SetOwnerReply(generation=request.generation + 1)


@dataclass(slots=True)
class Fleet:
    """All nodes, pods and shards."""

    admin: Admin
    namespace: str
    steps: int
    nodes: dict[str, str] = field(default_factory=dict)  # region by name
    off: set[str] = field(default_factory=set)
    shards: dict[str, Shard] = field(default_factory=dict)  # by job
    servers: list[Any] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of addresses
    running: dict[str, Object] = field(default_factory=dict)  # pods by UID
    moves: bool = True  # whether ticks pass
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(f"a fake has ended: {task.exception()!r}")

    async def add_node(self, name: str, region: str) -> None:
        """A node that is Ready, and renews its Lease from now on."""
        labels = {"topology.kubernetes.io/region": region, "kubernetes.io/hostname": name}
        metadata = {"name": name, "labels": labels}
        room = {"cpu": "1000", "memory": "4000Gi", "pods": str(PODS_OF_A_NODE)}
        await self.admin.call("POST", NODES, {"metadata": metadata})
        await self.report(name, "True", capacity=room, allocatable=room)
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()}
        await self.admin.call("POST", LEASES, {"metadata": {"name": name}, "spec": lease})
        self.nodes[name] = region

    async def report(self, name: str, ready: str, **more: Any) -> None:
        """A node's status, as its kubelet writes it every few minutes."""
        condition = {
            "type": "Ready", "status": ready, "reason": "Fake", "message": f"at {now()}",
            "lastHeartbeatTime": now(), "lastTransitionTime": now(),
        }  # fmt: skip
        body = {"status": {"conditions": [condition], **more}}
        await self.admin.call("PATCH", f"{NODES}/{name}/status", body, STRATEGIC)

    async def renew(self) -> None:
        """Of all nodes that are not off, for ever."""
        while True:
            for name in self.nodes.keys() - self.off:
                body = {"spec": {"renewTime": now()}}
                await self.admin.call("PATCH", f"{LEASES}/{name}", body, MERGE)
            await asyncio.sleep(RENEW_SECONDS)

    async def pass_ticks(self) -> None:
        """One a second, while `moves`."""
        while True:
            for shard in self.shards.values():
                shard.tick += self.moves
            await asyncio.sleep(1.0)

    async def run_pods(self) -> None:
        """What the kubelets do, for ever."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        async for event in self.admin.watch(path):
            pod = event["object"]
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            if event["type"] == "DELETED":
                self._forget(self.running.pop(uid, None))
            elif node in self.off or not node:
                continue
            elif "deletionTimestamp" in pod["metadata"]:
                self.start(self._end(path, pod))
            elif uid not in self.running:
                self.running[uid] = pod
                self.start(self._begin(path, pod))

    async def lose(self, node: str) -> None:
        """Its kubelet is silent from now on, and the sessions of its learners are dead."""
        self.off.add(node)
        for pod in self.running.values():
            if pod["spec"]["nodeName"] == node and (learner := self._learner(pod)) is not None:
                learner["lost"] = True
        await self.report(node, "False")

    def _learner(self, pod: Object) -> Object | None:
        """What the shard knows of it, if the slot is this pod's."""
        job = pod["metadata"]["labels"][Label.JOB]
        slot = pod["metadata"]["name"].removeprefix(f"{job}-")
        found = self.shards[job].learners.get(slot) if job in self.shards else None
        return found if found and found["uid"] == pod["metadata"]["uid"] else None

    def _forget(self, pod: Object | None) -> None:
        if pod is not None and (learner := self._learner(pod)) is not None:
            learner["lost"] = True

    async def _end(self, path: str, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self.admin.call("DELETE", f"{path}/{name}", body)

    async def _begin(self, path: str, pod: Object) -> None:
        metadata, labels = pod["metadata"], pod["metadata"]["labels"]
        job, address = labels[Label.JOB], "127.200.0.1"
        if labels[Label.ROLE] == "shard":
            address = await self._serve(job)
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        (container,) = pod["spec"]["containers"]
        state = {
            "name": container["name"], "ready": True, "started": True, "restartCount": 0,
            "image": container["image"], "imageID": "fake", "state": {"running": {}},
        }  # fmt: skip
        status = {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": kind, "status": "True"} for kind in kinds],
            "containerStatuses": [state],
        }  # fmt: skip
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        await self.admin.call("PATCH", f"{path}/{metadata['name']}/status", body, STRATEGIC)
        if labels[Label.ROLE] == "learner":
            slot = metadata["name"].removeprefix(f"{job}-")
            shard = self.shards.setdefault(job, Shard(self.steps))
            shard.learners[slot] = {"uid": metadata["uid"], "lost": False}

    async def _serve(self, job: str) -> str:
        number = next(self.numbers)
        address = f"127.{100 + number // 250}.{number % 250}.1"
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])  # one shard per address
        shard = self.shards.setdefault(job, Shard(self.steps))
        add_handlers(Service.SYNCER, shard, server)
        add_handlers(Service.REGISTRAR, shard, server)
        server.add_insecure_port(f"{address}:{SHARD_PORT}")
        await server.start()
        self.servers.append(server)
        return address
