"""One control group for each node, on cgroup v1 (tried) and v2 (written, not tried)."""

import os
import time
from pathlib import Path

from cluster.lab.layout import CGROUP, LabError, Node
from cluster.lab.processes import SECONDS_MAX

ROOT = Path("/sys/fs/cgroup")
WEIGHTS = {"cpu.shares": 8192, "cpu.weight": 800}  # of v1 and v2: eight times what one group has


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [h for h in ROOT.iterdir() if h.is_dir() and (h / "cgroup.procs").exists()]


def _make(folder: Path) -> None:
    """Make a group and hand on what a v1 cpuset and a v2 group do not inherit by themselves."""
    if not folder.exists():
        folder.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        own, above = folder / name, folder.parent / name
        if above.exists() and not own.read_text().strip():
            own.write_text(above.read_text())
    if (folder.parent / "cgroup.subtree_control").exists():
        for controller in (folder.parent / "cgroup.controllers").read_text().split():
            (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")


def join(node: Node) -> None:
    """Put this process, and with it what it will start, into the node's groups.

    Raises OSError where the kernel refuses.
    """
    for hierarchy in _hierarchies():
        folder = hierarchy
        for part in (*node.cgroup.split("/"), "daemons"):  # v2: processes live in leaves only
            folder /= part
            _make(folder)
        (folder / "cgroup.procs").write_text("0")


def make_parent() -> None:
    """Make the group above all nodes, which counts as several where other work wants the CPU."""
    for hierarchy in _hierarchies():
        folder = hierarchy / CGROUP
        _make(folder)
        for name, value in WEIGHTS.items():
            if (folder / name).exists():
                (folder / name).write_text(str(value))


def remove(below: str = CGROUP, seconds_max: float = SECONDS_MAX) -> None:
    """Remove a group with all below it, of which every process has been killed."""
    deadline = time.monotonic() + seconds_max
    for hierarchy in _hierarchies():
        top = hierarchy / below
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:  # a process has not quite ended, or a group below
                    continue
            if top.exists():
                if time.monotonic() > deadline:
                    raise LabError(f"{top} is still in use")
                time.sleep(0.05)
