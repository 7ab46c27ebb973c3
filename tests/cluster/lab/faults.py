"""Losing a node in three ways, and getting it back."""

import os
import signal
from pathlib import Path
from typing import Literal, get_args

from cluster.lab import cgroups, network, node
from cluster.lab.layout import LabError, Node
from cluster.lab.processes import (
    SECONDS_MAX,
    Process,
    boot_process,
    kill,
    of_lab,
    runs,
    wait_for,
)

Way = Literal["network", "power", "kubelet"]
WAYS: tuple[Way, ...] = get_args(Way)


def state(lost: Node, processes: list[Process]) -> str:
    """Return in one word how a node fares: off, cut, kubelet-dead or on."""
    names = {process.name for process in processes if process.node == lost.short}
    if "init" not in names:
        return "off"
    if network.is_cut(lost):
        return "cut"
    return "on" if "kubelet" in names else "kubelet-dead"


def cut(lost: Node, how: Way) -> None:
    """Lose a node: its cable (containers continue), its power, or its kubelet alone."""
    if how == "network":
        network.cut(lost)
        return
    wanted = "init" if how == "power" else "kubelet"
    pids = [p.pid for p in of_lab() if p.node == lost.short and p.name == wanted]
    if not pids:
        raise LabError(f"{lost.name} has no {wanted} that runs")
    for pid in pids:
        kill(pid)
    wait_for(
        f"{wanted} of {lost.name} gone",
        lambda: not any(runs(pid) for pid in pids),
        SECONDS_MAX,
        lost.folder / "log",
    )


def heal(lost: Node, programs: Path, only: Way | None = None) -> None:
    """Undo every cut of a node, or one way alone; one that is well stays as it is."""
    if only in (None, "network"):
        network.heal(lost)
    if only == "network":
        return
    pid = boot_process(lost.short)
    if pid is None:
        cgroups.remove(lost.cgroup)  # of the containers that died with it
        node.power_on(lost, programs)
    else:
        os.kill(pid, signal.SIGUSR1)
