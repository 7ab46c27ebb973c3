"""A real Prometheus scrapes a job in training, as the chart's PodMonitors ask.

It selects and labels the pods as the Prometheus Operator sets it up, reads the chart's alerts, and
answers every query of the dashboard. What it knows of the pods is written here, because Debian's
Prometheus does not ask Kubernetes itself.
"""

import contextlib
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.local.supervision.ports import free_ports
from chart.shown import RULES, filled, panels, rules
from cluster.installed import CHART, DEPLOYMENT, NAMESPACE, REPLICAS, Installed
from cluster.kubectl import until
from cluster.lab.binaries import unpacked
from cluster.training import Job

SCRAPED_SECONDS_MAX = 600.0
BACK_SECONDS_MAX = 600.0
INTERVAL = "1m"  # of rates; a scrape comes every two seconds
LOST = "From a node's last sign of life, 95th percentile"
QUIET = {"Trouble", LOST}  # panels that show nothing of a job that trains as it should
WITHOUT_LEADER = "AtollOperatorWithoutLeader"

pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A server on this machine, as Grafana and people ask it."""

    url: str

    def ask(self, path: str, **words: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.loads(answer.read())["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def alerts(self) -> dict[str, str]:
        """The state of each alert; AssertionError where one cannot be evaluated."""
        found = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        assert not [rule for rule in found if rule["health"] == "err"], found
        return {rule["name"]: rule["state"] for rule in found if rule["health"] == "ok"}


def pod_monitors(helm: str) -> list[dict[str, Any]]:
    """What the chart makes for the Prometheus Operator."""
    words = ("template", "atoll", str(CHART), "--namespace", NAMESPACE)
    images = [f"--set=images.{role}=any:1" for role in ("operator", "worker", "syncer")]
    done = subprocess.run(
        [helm, *words, "--set=metrics.podMonitor.enabled=true", *images],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return [each for each in found if each["kind"] == "PodMonitor"]


def label(name: str) -> str:
    """A name as a part of a label's name."""
    return "".join(each if each.isalnum() else "_" for each in name)


def discovered(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the discovery of pods has of each port of each container."""
    found = []
    for pod in pods:
        metadata, address = pod["metadata"], pod["status"].get("podIP")
        of_pod = {"namespace": metadata["namespace"], "pod_name": metadata["name"]}
        of_pod |= {f"pod_label_{label(k)}": v for k, v in metadata.get("labels", {}).items()}
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []) if address else []:
                of_port = {"name": container["name"], "port_name": port.get("name", "")}
                whole = of_pod | {f"pod_container_{k}": v for k, v in of_port.items()}
                labels = {f"__meta_kubernetes_{k}": v for k, v in whole.items()}
                found.append({"targets": [f"{address}:{port['containerPort']}"], "labels": labels})
    return found


def scrape_config(monitor: dict[str, Any], targets: Path) -> dict[str, Any]:
    """A PodMonitor as the Prometheus Operator gives it to Prometheus."""
    spec, metadata = monitor["spec"], monitor["metadata"]
    (endpoint,) = spec["podMetricsEndpoints"]
    kept = {f"pod_label_{label(k)}": v for k, v in spec["selector"]["matchLabels"].items()}
    kept["pod_container_port_name"] = endpoint["port"]
    if names := spec["namespaceSelector"].get("matchNames"):
        kept["namespace"] = "|".join(names)
    named = {"namespace": "namespace", "pod_name": "pod", "pod_container_name": "container"}
    name = f"{metadata['namespace']}/{metadata['name']}"
    return {
        "job_name": f"podMonitor/{name}",
        "file_sd_configs": [{"files": [str(targets)]}],
        "relabel_configs": [
            *(
                {"source_labels": [f"__meta_kubernetes_{k}"], "regex": v, "action": "keep"}
                for k, v in kept.items()
            ),
            *(
                {"source_labels": [f"__meta_kubernetes_{k}"], "target_label": v}
                for k, v in named.items()
            ),
            {"target_label": "job", "replacement": name},
            *(
                {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
                for each in endpoint.get("relabelings", [])
            ),
        ],
    }


@contextlib.contextmanager
def prometheus(program: Path, atoll: Installed, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes what is in the cluster now."""
    targets, file, (port,) = folder / "targets.json", folder / "prometheus.yml", free_ports(1)
    targets.write_text(json.dumps(discovered(atoll.kube.get("pods", "-A")["items"])))
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [scrape_config(each, targets) for each in pod_monitors(atoll.helm)],
    }
    file.write_text(yaml.safe_dump(config))
    log = folder / "prometheus.log"
    words = (f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}")
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [program, *words, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=written,
            stderr=written,
        ) as process,
    ):
        try:
            found = Prometheus(url=f"http://127.0.0.1:{port}")
            until("it serves", lambda: found.is_up() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield found
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()


def test_every_panel_shows_a_job_in_training_and_the_alerts_judge_it_right(
    train: Callable[..., Job], atoll: Installed, tmp_path: Path
) -> None:
    program = unpacked("prometheus", "usr/bin/prometheus")
    job = train("scraped", {"us-east": 2, "eu-west": 1})
    with prometheus(program, atoll, tmp_path) as server:
        shows(server, job)
        judges(server, atoll)


def shows(prometheus: Prometheus, job: Job) -> None:
    """The dashboard."""

    empty: list[set[str]] = []

    def is_shown() -> bool:
        shown = {title for title, query in panels() if prometheus.series(filled(query, INTERVAL))}
        empty.append({title for title, _ in panels()} - shown)
        return empty[-1] == QUIET

    try:
        until("every panel shows it", is_shown, SCRAPED_SECONDS_MAX)
    except AssertionError:
        sys.stderr.write(f"panels that show nothing: {empty[-1]}\n")
        raise
    mine = f'namespace="{job.namespace}",training_job="{job.name}",shard="0"'
    (training,) = prometheus.series(f'atoll_syncer_slots{{state="Training",{mine}}}')
    assert float(training["value"][1]) == 3
    (tick,) = prometheus.series(f"atoll_syncer_tick{{{mine}}}")
    assert float(tick["value"][1]) > 0
    for variable, value in (("namespace", job.namespace), ("training_job", job.name)):
        offered = prometheus.ask(f"label/{variable}/values", **{"match[]": "atoll_syncer_tick"})
        assert value in offered  # in the dashboard's lists
    (leads,) = prometheus.series("sum by (namespace) (atoll_operator_leader)")
    assert leads["value"][1] == "1"
    assert len(prometheus.series("atoll_operator_leader")) == REPLICAS


def judges(prometheus: Prometheus, atoll: Installed) -> None:
    """The alerts."""
    names = {rule["alert"] for rule in rules()}
    until("all alerts are judged", lambda: set(prometheus.alerts()) == names)
    assert "firing" not in prometheus.alerts().values()
    assert prometheus.alerts()[WITHOUT_LEADER] == "inactive"
    atoll.kube("-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=0")
    try:
        until("it is seen", lambda: prometheus.alerts()[WITHOUT_LEADER] == "pending")
    finally:
        atoll.kube("-n", NAMESPACE, "scale", DEPLOYMENT, f"--replicas={REPLICAS}")
        until("both are back", lambda: len(atoll.ready()) == REPLICAS, BACK_SECONDS_MAX)
        atoll.leader()
