"""The clusters that every other test of this folder stands on are real, and break as real ones."""

import os
import signal
import subprocess
import time

from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, until


def test_a_node_has_no_way_out_of_the_machine(lab: LabCommand) -> None:
    for node in lab.status()["clusters"][0]["nodes"]:
        inside = ["ip", "-n", node["namespace"], "route", "get", "198.51.100.1"]
        looked_up = subprocess.run(inside, capture_output=True, text=True, check=False)
        assert "unreachable" in looked_up.stderr


def test_a_kubelet_that_ends_by_itself_is_started_again(lab: LabCommand, kube: Kubectl) -> None:
    name = "c1-eu-west-2"
    before = lab.node(name)["pids"]["kubelet"]
    os.kill(before, signal.SIGTERM)  # it exits; a kubelet that is cut gets SIGKILL
    until("another kubelet", lambda: lab.node(name)["pids"].get("kubelet", before) != before)
    begun = time.time()
    until("Ready", lambda: kube.node_lives(name, begun))
