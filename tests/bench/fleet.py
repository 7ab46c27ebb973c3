"""What hundreds of jobs cost the operator and the API server, on a real control plane.

The control plane is the lab's (tests/cluster), without nodes of its own; nodes, kubelets and shards
are fakes of this process (`fleet_fakes`), so that only the operator's work is measured. It runs as
a process of this machine with the rights that the chart gives it; the API server's audit log shows
its requests. Everything is measured for half of the jobs and for all: a difference of the two is
what a job costs, whatever the operator needs for itself.

In tests/, as root: python -m bench.fleet --folder FOLDER [--jobs 200] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.fleet_fakes import Admin, Fleet, admin
from bench.nodes import memory
from bench.results import Figure, option, publish
from cluster.lab.layout import ROOT, Cluster, run_folder
from cluster.lab.lifecycle import current, describe
from cluster.lab.plane import audit_log

NAMESPACE, SYSTEM, ACCOUNT = "fleet", "atoll-system", "atoll-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
REGIONS = ("us-east", "eu-west", "ap-south")
NODES_OF_A_REGION = 4
JOBS = f"/apis/atoll.dev/v1alpha1/namespaces/{NAMESPACE}/decoupledtrainingjobs"
STEPS = 1_000_000
CONVERGE_SECONDS_MAX = 900.0
SETTLE_SECONDS = 45.0  # after which the start's Events and conditions are written
QUIET_SECONDS = 10.0  # without a change of any job: what an event has brought is done
RULES = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that the operator has used up to a moment."""

    at: float
    cpu_seconds: float
    passes: float
    requests: Counter[str]

    def since(self, before: "Reading") -> "Reading":
        return Reading(
            self.at - before.at,
            self.cpu_seconds - before.cpu_seconds,
            self.passes - before.passes,
            self.requests - before.requests,
        )


@dataclass(slots=True)
class Operator:
    """The process, and where to read what it does."""

    process: int
    http_port: int
    audit: Path

    def read(self) -> Reading:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / TICKS
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        name = "atoll_operator_pass_seconds_count "
        passes = next(float(each.removeprefix(name)) for each in lines if each.startswith(name))
        return Reading(time.monotonic(), cpu, passes, requests(self.audit))


def requests(log: Path) -> Counter[str]:
    """The operator's requests so far, by verb and resource; `status` is named apart."""
    found: Counter[str] = Counter()
    with log.open("rb") as lines:
        for line in lines:
            each = json.loads(line)
            where = each.get("objectRef")
            if each["user"]["username"] == USER and where and each["stage"] == "ResponseComplete":
                resource = "/".join(filter(None, (where["resource"], where.get("subresource"))))
                found[f"{each['verb']} {resource}"] += 1
    return found


def manifest(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "DecoupledTrainingJob",
        "metadata": {"name": f"job-{number:04}"},
        "spec": {
            "steps": STEPS,
            "regions": [{"name": region, "learners": 1} for region in REGIONS],
            "syncer": {"region": REGIONS[0], "shards": 1, "tls": {"mode": "Disabled"}},
        },
    }


async def until_trains(api: Admin, jobs: int, what: str) -> float:
    """Seconds until the status of all jobs reports that all learners train."""
    began = time.monotonic()
    while True:
        items = (await api.call("GET", JOBS))["items"]
        good = sum(_trains(each) for each in items)
        passed = time.monotonic() - began
        if good == len(items) == jobs:
            return passed
        assert passed < CONVERGE_SECONDS_MAX, f"{what}: {good} of {jobs} after {passed:.0f} s"
        await asyncio.sleep(1.0)


def _trains(job: dict[str, Any]) -> bool:
    found = {each["type"]: each for each in job.get("status", {}).get("conditions", ())}
    return bool(found) and (found["Ready"]["reason"], found["Degraded"]["status"]) == (
        "Training", "False",
    )  # fmt: skip


async def at_rest(operator: Operator, seconds: float) -> Reading:
    before = operator.read()
    await asyncio.sleep(seconds)
    return operator.read().since(before)


async def until_quiet(api: Admin, operator: Operator, jobs: int, before: Reading) -> Reading:
    """From `before` until all jobs train again and the operator writes no more than at rest."""
    while True:
        await until_trains(api, jobs, "after the loss of a node")
        ended = operator.read()
        await asyncio.sleep(QUIET_SECONDS)
        if not _writes(operator.read().since(ended)):
            return ended.since(before)


def _writes(reading: Reading) -> int:
    """Of the jobs' objects: statuses and the Lease of the leader are written at rest too."""
    return sum(
        count for each, count in reading.requests.items()
        if each.split()[0] in ("patch", "delete", "create")
        and not each.endswith(("/status", " leases"))
    )  # fmt: skip


async def measure(fleet: Fleet, operator: Operator, jobs: int, rest_seconds: float) -> list[Figure]:
    """Return what half of the jobs cost, and all; then a node is lost."""
    sizes = jobs // 2, jobs
    converged, mebibytes, passes = list[float](), list[float](), list[float]()
    shares: dict[str, list[float]] = {"training": [], "still": []}
    made = 0
    for size in sizes:
        manifests = map(manifest, range(made, size))
        await asyncio.gather(*(fleet.admin.call("POST", JOBS, each) for each in manifests))
        converged.append(await until_trains(fleet.admin, size, "start"))
        made = size
        await asyncio.sleep(SETTLE_SECONDS)
        moving = await at_rest(operator, rest_seconds)
        fleet.moves = False
        await asyncio.sleep(15.0)  # the last progress is written
        still = await at_rest(operator, rest_seconds)
        fleet.moves = True
        mebibytes.append(memory(operator.process)["VmRSS"])
        passes.append(moving.passes / size / moving.at * 60)
        for name, reading in (("training", moving), ("still", still)):
            shares[name].append(reading.cpu_seconds / reading.at)
            sys.stdout.write(f"{size} jobs, {name}: {dict(sorted(reading.requests.items()))}\n")
    more = sizes[1] - sizes[0]
    node = next(name for name, region in fleet.nodes.items() if region == REGIONS[1])
    before = operator.read()
    await fleet.lose(node)
    lost = await until_quiet(fleet.admin, operator, jobs, before)
    one_more = (mebibytes[1] - mebibytes[0]) / more
    return [
        Figure(what="until all train", values=converged, unit="s"),
        Figure(what="memory, and of one more job", values=[*mebibytes, one_more], unit="MiB"),
        *(
            figure
            for name, (few, all_) in shares.items()
            for figure in (
                Figure(what=f"CPU, {name}", values=[few, all_]),
                Figure(
                    what=f"CPU of one more job in a second, {name}",
                    values=[1000 * (all_ - few) / more],
                    unit="ms",
                ),
            )
        ),
        Figure(what="for each job in a minute", values=passes, unit="passes"),
        Figure(what="a node is lost: until all train", values=[lost.at], unit="s"),
        Figure(what="a node is lost: CPU", values=[lost.cpu_seconds], unit="s"),
    ]


# ---------------------------------------------------------------- the lab and the operator


def lab(*words: str) -> str:
    command = [sys.executable, str(ROOT / "tests/cluster"), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def plane() -> Iterator[Cluster]:
    """A control plane without nodes; refused while a lab is up."""
    if run_folder().exists():
        raise SystemExit("a lab is up: end it with `python tests/cluster down` first")
    try:
        lab("up", "--nodes", f"{REGIONS[0]}=0")
        (cluster,) = current().clusters
        yield cluster
    finally:
        lab("down")


def install(cluster: Cluster, folder: Path) -> Path:
    """The CRD, and the chart's account with its rights; returns the account's kubeconfig."""
    programs = Path(describe(current())["programs"])

    def call(program: str, *words: object, stdin: str = "") -> str:
        command = [str(each) for each in (programs / program, *words)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, input=stdin, text=True)
        return done.stdout

    text = call("helm", "template", "atoll", ROOT / "helm/atoll", "--namespace", SYSTEM)
    parts = [part for part in yaml.safe_load_all(text) if part and part["kind"] in RULES]
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (SYSTEM, NAMESPACE)
    ]
    whole = {"apiVersion": "v1", "kind": "List", "items": [*spaces, *crds, *parts]}
    own = f"--kubeconfig={cluster.kubeconfig}"
    call("kubectl", own, "apply", "--server-side", "-f", "-", stdin=json.dumps(whole))
    call("kubectl", own, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    token = call("kubectl", own, "-n", SYSTEM, "create", "token", ACCOUNT, "--duration=4h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


async def run(cluster: Cluster, folder: Path, jobs: int, rest_seconds: float) -> list[Figure]:
    config = install(cluster, folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    fleet = Fleet(admin=admin(cluster), namespace=NAMESPACE, steps=STEPS)
    for region in REGIONS:
        for number in range(NODES_OF_A_REGION):
            await fleet.add_node(f"{region}-{number}", region)
    for work in (fleet.renew(), fleet.run_pods(), fleet.pass_ticks()):
        fleet.start(work)
    environment = {
        **os.environ, "KUBECONFIG": str(config), "ATOLL_OPERATOR_HTTP_PORT": str(port),
        "ATOLL_WORKER_IMAGE": "worker", "ATOLL_SYNCER_IMAGE": "syncer",
        "ATOLL_OPERATOR_LEASE": f"{SYSTEM}/{ACCOUNT}",
    }  # fmt: skip
    with (folder / "operator.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "atoll_operator", env=environment, stderr=log
        )
    try:
        operator = Operator(process.pid, port, audit_log(cluster))
        while True:
            try:
                operator.read()
                break
            except (OSError, StopIteration):
                assert process.returncode is None, (folder / "operator.log").read_text()[-2000:]
                await asyncio.sleep(0.5)
        return await measure(fleet, operator, jobs, rest_seconds)
    finally:
        process.kill()
        await process.wait()
        for task in list(fleet.tasks):
            task.cancel()
        for server in fleet.servers:
            await server.stop(None)
        await fleet.admin.session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rest-seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, required=True, help="for logs")
    option(parser)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the lab goes down
    with plane() as cluster:
        figures = asyncio.run(run(cluster, given.folder, given.jobs, given.rest_seconds))
    publish(given, figures, about="Jobs of 3 regions; CPU as a share of one core.")


if __name__ == "__main__":
    main()
