"""Up, down and status of a lab: the order in which its parts come and go."""

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.lab import api, binaries, cgroups, faults, images, machine, network, roles
from cluster.lab.layout import (
    ROOT,
    Cluster,
    Lab,
    LabError,
    Node,
    cache_folder,
    from_json,
    run_folder,
    to_json,
)
from cluster.lab.node import OWN_FOLDERS, configure, power_on
from cluster.lab.pki import make_pki
from cluster.lab.plane import start_plane, wait_until_usable
from cluster.lab.processes import kill_all, mark_children, of_lab


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock that lets one command at a time change the lab."""
    if os.geteuid() != 0:
        raise LabError("namespaces, mounts and control groups need root: run this with sudo")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def why_not() -> str | None:
    """Return why no cluster can be made here as things are, with the remedy; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for namespaces, mounts and control groups"
    missing = [*binaries.missing_packages(), *binaries.missing_programs()]
    if missing:
        first = "run `python tests/cluster prepare` first, which takes about 8 minutes once"
        return f"{first} (there is no {', '.join(missing)})"
    return None


def current() -> Lab:
    """Read the lab that is up, or was when its `up` was killed."""
    file = run_folder() / "lab.json"
    if not file.exists():
        raise LabError("no cluster is up: start one with `up`")
    return from_json(file.read_text())


def prepare() -> Path:
    """Install, build and fetch all that is not cached; return the folder of the programs."""
    programs = _programs()
    _golden(programs)
    return programs


def _programs() -> Path:
    mark_children()
    binaries.install_packages()
    return binaries.programs()


def _golden(programs: Path) -> Path:
    """Return the containerd folder of nodes that have just been made."""
    return images.golden(images.base_archive(programs))


def up(lab: Lab) -> None:
    """Bring a lab up, or find it up already. The rest of an `up` that was killed is removed."""
    finished = run_folder() / "finished"
    if finished.exists() and of_lab():
        if current() != lab:
            whose = current().checkout
            raise LabError(f"another lab is up, made from {whose}: end it with `down` first")
        return
    down()
    try:
        _bring_up(lab)
    except BaseException:
        kept = cache_folder() / "failed"
        shutil.rmtree(kept, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            run_folder().rename(kept)
            sys.stderr.write(f"what it wrote, logs among it, is now in {kept}\n")
        down()
        raise
    finished.touch()


def _bring_up(lab: Lab) -> None:
    programs, archive, containerd = _programs(), None, None
    if any(lab.nodes()):  # a control plane alone needs no image
        containerd = _golden(programs)
        archive = images.role_archive()
    run_folder().mkdir(parents=True)
    (run_folder() / "lab.json").write_text(to_json(lab))
    machine.prepare(OWN_FOLDERS)
    cgroups.make_parent()
    network.lay(lab)
    with ThreadPoolExecutor() as pool:
        for cluster in pool.map(lambda c: _boot(lab, c, programs, containerd), lab.clusters):
            wait_until_usable(cluster, programs)
    if archive is not None:
        load(archive, lab.nodes())


def load(archive: Path, nodes: Iterable[Node]) -> None:
    """Import an archive into nodes."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: images.load(node, archive), nodes))


def _boot(lab: Lab, cluster: Cluster, programs: Path, containerd: Path | None) -> Cluster:
    make_pki(cluster)
    for node in cluster.nodes:
        configure(cluster, node, lab)
        if containerd is not None:
            images.give_images(node, containerd)
    start_plane(cluster, programs)
    for node in cluster.nodes:
        power_on(node, programs)
    return cluster


def refuse_of_another_checkout() -> None:
    """Raise LabError when a lab is up that another checkout's `up` has made."""
    if (run_folder() / "finished").exists() and of_lab():
        whose = current().checkout
        if whose != str(ROOT):
            raise LabError(f"the lab that is up was made from {whose}: down --whose-ever ends it")


def down() -> None:
    """Remove everything that any `up` has left, however it ended; nothing to do is fine."""
    (run_folder() / "finished").unlink(missing_ok=True)
    kill_all()
    cgroups.remove()
    network.tear_down()
    network.forget_netns_folder()
    machine.restore()
    for folder in (run_folder(), *cache_folder().glob("*/tmp*")):  # scratch of a killed command
        shutil.rmtree(folder, ignore_errors=True)


def describe(lab: Lab) -> dict[str, Any]:
    """Return where everything is and how it fares, for people and programs."""
    processes = of_lab()
    return {
        "programs": str(binaries.programs()),
        "images": [roles.name(role) for role in roles.COMMANDS],
        "clusters": [
            {
                "name": cluster.name,
                "kubeconfig": str(cluster.kubeconfig),
                "server": cluster.server,
                "pids": {p.name: p.pid for p in processes if p.cluster == cluster.name},
                "nodes": [
                    {
                        "name": node.name,
                        "region": node.region,
                        "address": node.address,
                        "namespace": node.link,
                        "state": faults.state(node, processes),
                        "ready": ready.get(node.name, "Unknown"),
                        "pids": {p.name: p.pid for p in processes if p.node == node.short},
                    }
                    for node in cluster.nodes
                ],
            }
            for cluster in lab.clusters
            for ready in [api.ready_by_node(cluster)]
        ],
    }
