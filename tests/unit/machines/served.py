"""A server of a job of three regions, at a real port."""

import time
from pathlib import Path

from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import expected, run_file
from atoll_operator.local.run_files import RUN_FILE, SLOTS_FILE
from atoll_operator.local.startable import free_ports
from atoll_operator.machines.bundle import Bundle, Token
from atoll_operator.machines.joined import entering
from atoll_operator.machines.joined.entering import JoinOptions
from atoll_operator.machines.joined.server_link import ServerLink
from atoll_operator.machines.joined.watching import Server, Watcher
from atoll_operator.machines.server.serving import MachineServer, new_token, serving_in

JOB = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 60
  regions: [{name: us, learners: 2}, {name: eu}, {name: here}]
"""


def enter(place: JoinOptions) -> tuple[Path, Bundle, bool]:
    """The state folder, what is in it, and whether the machine has entered only now."""
    found = entering.enter(place, time.time())
    return found.folder, found.bundle, found.new


def watcher_of(folder: Path, machine: Bundle, meeting: str = "") -> Watcher:
    """What its source says it writes; no shard is there to be asked."""
    source = Server(ServerLink(machine.server, machine.anchor))
    return Watcher(folder, machine, lambda _: None, source, meeting)


class Served:
    """A server of a job, without its run."""

    def __init__(self, out: Path) -> None:
        job, (port,) = parse(JOB), free_ports(1)
        out.mkdir(exist_ok=True)
        (out / RUN_FILE).write_text(run_file(job).to_json())
        (out / SLOTS_FILE).write_text(expected(job).to_json())
        listen = f"127.0.0.1:{port}"
        self.out, self.job, self.said = out, job, list[str]()
        self.server: MachineServer = serving_in(
            out, job, listen=listen, here=["here"], now=time.time()
        )
        self.place = self.server.server.place

    def token(self, hours: float = 1.0, uses: int | None = None, region: str = "us") -> Token:
        now = time.time()
        return new_token(self.out, region=region, uses=uses, hours=hours, now=now)

    def options(
        self, state: Path | None, token: Token | None = None, **more: object
    ) -> JoinOptions:
        given = {"name": "house", "token": str(token or ""), **more}
        return JoinOptions(server=self.place, state=state, **given)  # type: ignore[arg-type]
