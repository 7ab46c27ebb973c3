"""A job on a cluster as a person sees it with kubectl, and as its shards report it."""

import base64
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.addresses import joined
from atoll_protos.network.channels import TARGET_NAME
from atoll_protos.network.credentials import Credentials
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from cluster.kubectl import SECONDS_MAX, Kubectl, Object, until

PORT = 7700
TRAIN_SECONDS_MAX = 600.0
ANSWERS_MAX = 120  # questions to a shard, one a second at most


def manifest(name: str, regions: dict[str, int], **spec: Any) -> Object:
    """Return a job of the byte-level model: few fragments, short period, no evaluator."""
    whole = {
        "steps": 100_000,
        "regions": [{"name": region, "learners": count} for region, count in regions.items()],
        "syncer": {"region": next(iter(regions)), "shards": 1},
        "sync": {"fragments": 4, "period": 16, "overlap": 2, "quorum": 1},
    }
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "DecoupledTrainingJob",
        "metadata": {"name": name},
        "spec": whole | spec,
    }


def model(milliseconds: int) -> Object:
    """Return a learner of the byte-level model whose steps take at least so long."""
    command = ["atoll-worker", "bytegpt.train:main"]
    small = ["--batch=2", "--context=64", f"--step-milliseconds-min={milliseconds}"]
    container = {"name": "learner", "command": command, "args": small}
    return {"template": {"spec": {"containers": [container]}}}


def pace(milliseconds: int) -> Object:
    """Return a learner without torch whose steps take at least so long (`light`)."""
    container = {
        "name": "learner",
        "command": ["atoll-worker", "light:main"],
        "args": ["--batch=2", f"--step-milliseconds-min={milliseconds}"],
        "workingDir": "/light",
        "volumeMounts": [{"name": "light", "mountPath": "/light"}],
    }
    volume = {"name": "light", "configMap": {"name": "light"}}
    return {"template": {"spec": {"containers": [container], "volumes": [volume]}}}


def light() -> Object:
    """The ConfigMap that every namespace has whose learners need no torch."""
    data = {"light.py": Path(__file__).with_name("light.py").read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "light"}, "data": data}


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of a namespace."""

    kube: Kubectl
    namespace: str
    name: str
    channels: dict[str, grpc.Channel] = field(default_factory=dict)

    def kubectl(self, *words: str) -> str:
        return self.kube("-n", self.namespace, *words)

    def get(self) -> dict[str, Any]:
        return self.kube.get("-n", self.namespace, "dtj", self.name)

    def condition(self, kind: str) -> dict[str, str]:
        found = self.get().get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {"status": "", "reason": ""})

    def is_true(self, kind: str) -> bool:
        return self.condition(kind)["status"] == "True"

    def pods(self, role: str = "") -> dict[str, dict[str, Any]]:
        selector = f"atoll.dev/job={self.name}" + (f",atoll.dev/role={role}" if role else "")
        items = self.kube.get("-n", self.namespace, "pods", "-l", selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def at_rest(self, learners: int) -> bool:
        """Whether the pods are those that the controllers want, and so many learners train in them.

        Of one host each. A controller may be seconds behind: it has done what its workload asks for
        once it has observed it, and pods of a workload that was deleted wait for the collector.
        """
        kinds = "statefulsets,deployments,replicasets"
        of_job = ("-l", f"atoll.dev/job={self.name}")
        workloads = self.kube.get("-n", self.namespace, kinds, *of_job)["items"]
        # After them: what an observed workload does away with is leaving. One that failed may stay.
        pods = [pod for pod in self.pods().values() if pod["status"].get("phase") != "Failed"]
        if any(
            each["status"].get("observedGeneration", 0) < each["metadata"]["generation"]
            for each in workloads
        ):
            return False
        sets = [each for each in workloads if each["kind"] != "ReplicaSet"]
        present = {each["metadata"]["uid"] for each in sets}
        for each in workloads:
            if each["kind"] == "ReplicaSet" and _controller(each) in present:
                present.add(each["metadata"]["uid"])
        if len(pods) != sum(each["spec"]["replicas"] for each in sets) or not all(
            _controller(pod) in present and "deletionTimestamp" not in pod["metadata"]
            for pod in pods
        ):
            return False
        training = set(self.training().values())
        return len(training) == learners and training == {
            pod["metadata"]["uid"]
            for pod in pods
            if pod["metadata"]["labels"]["atoll.dev/role"] == "learner"
        }

    def uids(self, role: str = "") -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(role).items()}

    def node_of(self, pod: str) -> str:
        """Empty while it has no node, also between its deletion and the new object."""
        return str(self.pods().get(pod, {"spec": {}})["spec"].get("nodeName", ""))

    def status(self) -> pb.StatusReply | None:
        """What shard 0 itself reports; None when it does not answer."""
        for address in itertools.chain(list(self.channels), self._addresses()):
            channel = self.channels.get(address) or self._open(address)
            try:
                reply: pb.StatusReply = SyncerStub(channel).Status(pb.StatusRequest(), timeout=20)
            except grpc.RpcError:
                self.channels.pop(address, None)
                channel.close()
                continue
            self.channels[address] = channel
            return reply
        return None

    def answer(self) -> pb.StatusReply:
        """The same, as soon as it answers."""
        for _ in range(ANSWERS_MAX):
            if reply := self.status():
                return reply
            time.sleep(1.0)
        raise AssertionError(f"shard 0 of {self.name} does not answer")

    def _open(self, address: str) -> grpc.Channel:
        """As a learner of the job, which a person may be who can read its Secrets."""
        where, found = joined(address, PORT), self.credentials()
        if found is None:
            return grpc.insecure_channel(where)
        secrets = grpc.ssl_channel_credentials(found.authority, found.key, found.certificate)
        name = (TARGET_NAME, found.identity.server_name)
        return grpc.secure_channel(where, secrets, options=[name])

    def credentials(self, role: str = "learner") -> Credentials | None:
        """Those of a role's first Secret; None where the job talks in plain text."""
        selector = f"atoll.dev/job={self.name},atoll.dev/role={role}"
        items = self.kube.get("-n", self.namespace, "secrets", "-l", selector)["items"]
        if not items:
            return None
        data = {key: base64.b64decode(value) for key, value in items[0]["data"].items()}
        return Credentials(data["tls.crt"], data["tls.key"], data["ca.crt"])

    def _addresses(self) -> Iterator[str]:
        for pod in self.pods("shard").values():
            address = pod["status"].get("podIP")
            if pod["metadata"]["labels"]["atoll.dev/shard"] == "0" and address:
                yield address

    def training(self) -> dict[str, str]:
        """UIDs of the pods that train, by slot."""
        return {slot: uid for slot, (uid, _) in progress(self.status()).items()}

    def trains(self, count: int) -> None:
        until(f"{count} train", lambda: len(self.training()) == count, TRAIN_SECONDS_MAX)

    def steps(self) -> dict[str, int]:
        """Steps of each slot's present process."""
        reply = self.status()
        return {s.slot: s.t_m for s in reply.slots} if reply else {}

    def events(self, reason: str = "") -> list[tuple[str, str]]:
        """Type and message of the Events of this job as a whole."""
        fields = f"involvedObject.kind=DecoupledTrainingJob,involvedObject.name={self.name}"
        fields += f",reason={reason}" if reason else ""
        items = self.kube.get("-n", self.namespace, "events", "--field-selector", fields)["items"]
        return [(each["type"], each["message"]) for each in items]

    def patch(self, **spec: object) -> None:
        change = json.dumps({"spec": spec})
        self.kubectl("patch", "dtj", self.name, "--type=merge", "-p", change)

    def tape(self, pod: str = "") -> list[dict[str, Any]]:
        """Everything that shard 0 has recorded, as far as its storage reaches back."""
        read = f"cat {'/data/*/tape.jsonl'}"
        where = pod or f"deploy/{self.name}-syncer-0"
        text = self.kubectl("exec", where, "--", "sh", "-c", read)
        whole, _, _ = text.rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def commits(self) -> list[float]:
        """The times of shard 0's commits."""
        return [each["time"] for each in self.tape() if each.get("event") == "commit"]

    def nothing_counts_twice(self) -> set[str]:
        """Slots with merged work; no offer is merged twice, and no more than was trained.

        A shard that was started again knows only what was trained since, so then that is left out.
        """
        tape, reply = self.tape(), self.answer()  # in this order: what is merged was trained before
        trained = {each.slot: each.tokens for each in reply.slots}
        names: set[tuple[Any, ...]] = set()
        merged: dict[tuple[int, str], int] = defaultdict(int)
        commits = [each for each in tape if each.get("event") == "commit"]
        for line in commits:
            slots = [part["slot"] for part in line["participants"]]
            assert len(slots) == len(set(slots)), line
            for part in line["participants"]:
                fields = ("slot", "incarnation", "base", "capture")
                name = (line["slice"], *(part[each] for each in fields))
                assert name not in names, f"{name} is merged twice"
                names.add(name)
                merged[line["slice"], part["slot"]] += part["tokens"]
        if {each["epoch"] for each in commits} == {reply.epoch}:
            found = (merged, trained)
            assert all(tokens <= trained[slot] for (_, slot), tokens in merged.items()), found
        return {slot for _, slot in merged}


def progress(reply: pb.StatusReply | None) -> dict[str, tuple[str, int]]:
    """The pod's UID and the steps of each slot that trains; nothing without an answer."""
    slots = reply.slots if reply else ()
    return {each.slot: (each.uid, each.t_m) for each in slots if each.state == pb.SLOT_TRAINING}


def _controller(found: Object) -> str:
    """The UID of an object's controller; empty: it has none."""
    owners = found["metadata"].get("ownerReferences", ())
    return next((each["uid"] for each in owners if each.get("controller")), "")


def trained(kube: Kubectl, namespace: str, name: str, regions: dict[str, int], **spec: Any) -> Job:
    """Apply a job with steps of 0.3 s, and return it once all its learners train."""
    job = Job(kube=kube, namespace=namespace, name=name)
    kube.apply(namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
    job.trains(sum(regions.values()))
    return job


def pass_seconds(seconds: float) -> None:
    """Let a job continue: what is measured later is compared with this span."""
    began = time.monotonic()
    until("time passes", lambda: time.monotonic() - began >= seconds, seconds + 5)


def largest_gap(times: list[float], since: float, until: float) -> float:
    """Return the longest pause between two of the times within a span, its ends included."""
    within = [since, *(each for each in times if since < each < until), until]
    return max(later - earlier for earlier, later in itertools.pairwise(within))


@dataclass(slots=True, kw_only=True)
class Stopwatch:
    """Seconds from one moment to what happens after it, each noted once."""

    began: float = field(default_factory=time.time)
    laps: dict[str, float] = field(default_factory=dict)

    def until(
        self, what: str, condition: Callable[[], bool], seconds_max: float = SECONDS_MAX
    ) -> float:
        while not condition():
            passed = time.time() - self.began
            assert passed < seconds_max, f"{what}: not within {seconds_max:.0f} s; {self.laps}"
            time.sleep(0.2)
        self.laps[what] = round(time.time() - self.began, 1)
        return self.laps[what]
