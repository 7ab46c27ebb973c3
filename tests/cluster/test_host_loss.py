"""Hosts of a learner are lost in mid-training: it comes back as one, and the others continue."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from cluster.kubectl import Kubectl, Object, until
from cluster.training import Job, Stopwatch, largest_gap, pass_seconds

SCRIPT = Path(__file__).with_name("hosts_script.py")
REGIONS = {"us-east": 1, "eu-west": 1}
LOST, OTHER = "eu-west-0", "us-east-0"
BEFORE_SECONDS = 15.0
BACK_SECONDS_MAX = 600.0
GAPS = 4
STEP = re.compile(r"step ([\d.]+) of (\d+)")

Cut = Callable[..., None]


@dataclass(slots=True, kw_only=True)
class Pair:
    """A job with two learners of two hosts, each host on a node of its own."""

    job: Job
    incarnation: int = 0  # of the lost learner, before the present event

    def pod(self, host: int, slot: str = LOST) -> str:
        return f"{self.job.name}-{slot}-{host}"

    def node(self, host: int) -> str:
        return self.job.node_of(self.pod(host))

    def uids(self) -> tuple[str, ...]:
        """UIDs of the lost learner's pods, by host; empty between two objects."""
        found = self.job.uids("learner")
        return tuple(found.get(self.pod(host), "") for host in (0, 1))

    def is_back(self) -> bool:
        """Whether the lost learner trains again, by the pod of its present head."""
        reply = self.job.status()
        slots = reply.slots if reply is not None else []
        return any(
            each.state == pb.SLOT_TRAINING and each.incarnation > self.incarnation
            for each in slots
            if (each.slot, each.uid) == (LOST, self.uids()[0])
        )

    def incarnations(self) -> list[int]:
        """Those of the lost learner that shard 0 has taken, in their order."""
        taken = [line for line in self.job.tape() if line["event"] == "taken"]
        return [line["incarnation"] for line in taken if line["slot"] == LOST]

    def steps_of(self, slot: str) -> list[tuple[float, int]]:
        """The times of a learner's steps, and how many ranks made each."""
        log = self.job.kubectl("logs", self.pod(0, slot), "-c", "learner", "--tail=2000")
        return [(float(at), int(ranks)) for at, ranks in STEP.findall(log)]

    def ranks(self) -> int:
        """Those that made the newest step of the lost learner."""
        return max(self.steps_of(LOST), default=(0.0, 0))[1]


@pytest.fixture
def pair(train: Callable[..., Job], kube: Kubectl, namespace: str) -> Pair:
    """Start the job and let it train a while."""
    kube.apply(namespace, _script())
    learner = {"hosts": 2, "template": {"spec": _pod("pair")}}
    found = Pair(job=train("pair", REGIONS, learner=learner))
    assert len({found.node(0), found.node(1)}) == 2
    until("both hosts train", lambda: found.ranks() == 2, BACK_SECONDS_MAX)
    pass_seconds(BEFORE_SECONDS)
    found.incarnation = found.incarnations()[-1]
    return found


def _script() -> Object:
    data = {"train.py": SCRIPT.read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": data}


def _pod(job: str) -> Object:
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"atoll.dev/job": job, "atoll.dev/role": "learner"}},
    }
    return {
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
        "containers": [
            {
                "name": "learner",
                "command": ["python3", "/script/train.py"],
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                "volumeMounts": [{"name": "script", "mountPath": "/script"}],
            }
        ],
        "volumes": [{"name": "script", "configMap": {"name": "script"}}],
    }


@contextlib.contextmanager
def went_on(pair: Pair, what: str) -> Iterator[Stopwatch]:
    """What holds after every loss: one new incarnation, nothing twice, and no pause of others."""
    others = {name: uid for name, uid in pair.job.uids().items() if LOST not in name}
    watch = Stopwatch()
    yield watch
    watch.until("trains", pair.is_back, BACK_SECONDS_MAX)
    back = time.time()
    steps = [at for at, _ in pair.steps_of(OTHER)]
    before = largest_gap(steps, watch.began - BEFORE_SECONDS / 2, watch.began)
    during = largest_gap(steps, watch.began, back)
    figures = f"{what}: {watch.laps}, gap before {before:.2f} s, during {during:.2f} s"
    sys.stderr.write(f"\n{figures}\n")
    # No learner waits for the learner that is lost; a busy machine has gaps of its own.
    assert during < max(watch.laps["trains"] / 2, GAPS * before), figures
    assert others.items() <= pair.job.uids().items(), figures
    next_one = pair.incarnation + 1
    until("its work is merged again", lambda: _merges(pair.job, next_one) > 0)
    assert pair.incarnations()[-2:] == [pair.incarnation, next_one], figures
    pair.incarnation = next_one
    assert pair.job.nothing_counts_twice() == {LOST, OTHER}


def _merges(job: Job, incarnation: int) -> int:
    """How many commits hold work of this incarnation of the lost learner."""
    commits = [line for line in job.tape() if line["event"] == "commit"]
    parts: list[dict[str, Any]] = [part for line in commits for part in line["participants"]]
    return sum(part["slot"] == LOST and part["incarnation"] == incarnation for part in parts)


@pytest.mark.parametrize(
    ("hosts", "how"),
    [
        pytest.param((1,), "power", id="follower"),
        pytest.param((0,), "power", id="head", marks=pytest.mark.long),
        pytest.param((0, 1), "power", id="both", marks=pytest.mark.long),
        pytest.param((1,), "network", id="freeze", marks=pytest.mark.long),
    ],
)
def test_a_learner_whose_hosts_are_lost_comes_back_as_one_and_the_others_go_on(
    hosts: tuple[int, ...], how: str, pair: Pair, cut: Cut
) -> None:
    before = pair.uids()
    with went_on(pair, f"hosts {hosts}, {how}") as watch:
        cut(*(pair.node(host) for host in hosts), how=how)
        watch.until("objects", lambda: all(pair.uids()[n] not in ("", before[n]) for n in hosts))
    kept = [host for host in (0, 1) if host not in hosts]
    assert all(pair.uids()[host] == before[host] for host in kept)
    events = pair.job.kubectl("get", "events", "--field-selector", "reason=NodeLost", "-o", "name")
    assert len(events.split()) == len(hosts)
