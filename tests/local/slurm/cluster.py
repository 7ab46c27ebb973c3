"""A Slurm of two nodes on this machine: munged, slurmctld, and a slurmd for each node.

A node is a process namespace of its own, so that all of its tasks end with its slurmd. All listen
on the loopback interface. Each node has one GPU, which is a null device: Slurm counts it, and tells
tasks its number. Nothing is left when the test ends; it needs root.
"""

import os
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll_operator.local.startable import free_ports
from local import installed
from wire.fake_pods import ENDS_WITH_TEST

SECONDS_MAX = 300.0
LOOK_SECONDS = 0.2
NODES = ("one", "two")
NODE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL", "--", "bash", "-c")
DAEMON = "slurmd -D -N {} & wait"  # bash is the first process, which waits for orphans
NULL = (1, 3)  # the device /dev/null
REQUEUE_SECONDS = 5  # that a requeued job waits: the life of its credential
CONFIGURATION = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""
NODE_LINE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:1\n"
GPU_LINE = "NodeName={name} Name=gpu File={file}\n"


@dataclass(frozen=True, slots=True)
class Slurm:
    """One that runs. Jobs are numbers, as text."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def says(self, *words: object, **more: str) -> str:
        """What a command of Slurm writes; `more` are variables. Raises CalledProcessError."""
        return subprocess.run(
            [*map(str, words)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**self.environment, **more},
            timeout=SECONDS_MAX,
        ).stdout

    def submit(self, *words: object, **more: str) -> str:
        """The job."""
        return self.says("sbatch", "--parsable", *words, **more).strip()

    def job(self, job: str) -> Mapping[str, str]:
        """What `scontrol show job` says."""
        text = self.says("scontrol", "--oneliner", "show", "job", job)
        return dict(each.split("=", 1) for each in text.split() if "=" in each)

    def until(self, job: str, state: str) -> Mapping[str, str]:
        deadline = time.monotonic() + SECONDS_MAX
        while (found := self.job(job))["JobState"] != state:
            assert time.monotonic() < deadline, f"job {job} is not {state}: {found}\n{self.logs()}"
            time.sleep(LOOK_SECONDS)
        return found

    def logs(self) -> str:
        return "\n".join(f"{x.name}: {x.read_text()[-2000:]}" for x in self.folder.glob("*.log"))


@contextmanager
def slurm_in(folder: Path) -> Iterator[Slurm]:
    """All of a task's processes get its signals, where pgid and cgroup signal the task alone."""
    installed.slurm()
    folder.mkdir()
    _configure(folder)
    slurm = Slurm(folder)
    own = ("--socket=munge.socket", "--pid-file=munge.pid", "--log-file=munge.log")
    key = ("--key-file=munge.key", "--seed-file=munge.seed", "--force")
    with ExitStack() as stack:
        stack.enter_context(_daemon(slurm, "munged", "munged", "--foreground", *key, *own))
        stack.enter_context(_daemon(slurm, "slurmctld", "slurmctld", "-D"))
        for node in NODES:
            stack.enter_context(_daemon(slurm, node, *NODE, DAEMON.format(node)))
        deadline = time.monotonic() + SECONDS_MAX
        while slurm.says("sh", "-c", "sinfo -hN -o %t || true").split() != ["idle"] * len(NODES):
            assert time.monotonic() < deadline, slurm.logs()
            time.sleep(LOOK_SECONDS)
        yield slurm


def _configure(folder: Path) -> None:
    controller, *ports = free_ports(1 + len(NODES))
    text = CONFIGURATION.format(
        folder=folder,
        controller=controller,
        requeue=REQUEUE_SECONDS,
        nodes=",".join(NODES),
    )
    host, gpus = socket.gethostname().split(".")[0], ""
    for number, (name, port) in enumerate(zip(NODES, ports, strict=True)):
        text += NODE_LINE.format(name=name, host=host, port=port)
        gpus += GPU_LINE.format(name=name, file=folder / f"gpu{number}")
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(*NULL))
        (folder / name).mkdir()
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(gpus)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)


@contextmanager
def _daemon(slurm: Slurm, name: str, *words: str) -> Iterator[None]:
    with (slurm.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*ENDS_WITH_TEST, *words],
            cwd=slurm.folder,
            env=slurm.environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
