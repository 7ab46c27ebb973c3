"""A person at a terminal: types kubectl commands, edits one manifest, and reads what is printed.

The scenarios in `operations/` are written with this, so that each can be read, and typed, as it is.
"""

import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cluster.kubectl import Kubectl, until
from cluster.training import Job, progress

MANIFEST = """\
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 100000
  regions:
    - {name: us-east, learners: 1}
    - {name: eu-west, learners: 1}
  syncer: {region: us-east, shards: 1}
  sync: {fragments: 4, period: 16, overlap: 2, quorum: 1}
  learner:
    template:
      spec:
        volumes: [{name: light, configMap: {name: light}}]
        containers:
          - name: learner
            command: [atoll-worker, "light:main"]
            args: [--batch=2, --context=64, --step-milliseconds-min=300]
            workingDir: /light
            volumeMounts: [{name: light, mountPath: /light}]
"""
REPORT_SECONDS_MAX = 300.0  # what is promised is 15 s; no test depends on how fast the machine is
TRAINS_SECONDS_MAX = 600.0


@dataclass(slots=True, kw_only=True)
class Person:
    """A person with a namespace, a terminal and the manifest of one job."""

    kube: Kubectl
    namespace: str
    name: str = "tiny"
    manifest: str = MANIFEST
    job: Job = field(init=False)
    pods: dict[str, str] = field(default_factory=dict)  # UIDs of those with which it began

    def __post_init__(self) -> None:
        self.manifest = self.manifest.replace("{name: tiny}", f"{{name: {self.name}}}")
        self.job = Job(kube=self.kube, namespace=self.namespace, name=self.name)

    # ------------------------------------------------------------ types

    def types(self, command: str, stdin: str | None = None) -> str:
        """Run a kubectl command in the namespace and return what it prints."""
        return self.kube(*self._words(command), stdin=stdin)

    def is_refused(self, command: str, stdin: str | None = None) -> str:
        """Run a kubectl command that must fail, and return its error."""
        done = self.kube.attempt(*self._words(command), stdin=stdin)
        assert done.returncode != 0, f"{command}: was not refused: {done.stdout}"
        return done.stderr

    def applies(self) -> None:
        """`kubectl apply -f FILE`, with the manifest as it is now."""
        self.types("kubectl apply -f -", stdin=self.manifest)

    def edits(self, *changes: tuple[str, str]) -> None:
        """Replace text in the manifest and apply it again."""
        for old, new in changes:
            assert self.manifest.count(old) == 1, f"{old!r} is not once in the manifest"
            self.manifest = self.manifest.replace(old, new)
        self.applies()

    def _words(self, command: str) -> list[str]:
        program, *words = shlex.split(command)
        assert program == "kubectl"
        return ["-n", self.namespace, *words]

    # ------------------------------------------------------------ reads

    def reads(self, kind: str, status: str, *words: str) -> str:
        """Wait until a condition has a status and a message with these words; return the message.

        Words are looked for in reason and message, whatever their case.
        """
        ends = time.monotonic() + REPORT_SECONDS_MAX
        while True:
            found = self.job.condition(kind)
            text = f"{found['reason']}: {found.get('message', '')}"
            missing = [word for word in words if word.lower() not in text.lower()]
            if found["status"] == status and not missing:
                return text
            assert time.monotonic() < ends, (
                f"{kind} is {found['status']}, not {status}, or lacks {missing}: {text}"
            )
            time.sleep(0.3)

    def trains(self, learners: int) -> None:
        """Wait until that many learners train."""
        self.job.trains(learners)

    def rests(self, learners: int) -> None:
        """Wait until that many train, in the job's present pods, and no controller is behind."""
        until("all is as it should be", lambda: self.job.at_rest(learners), TRAINS_SECONDS_MAX)

    def goes_on(self, slots: Collection[str] = ("us-east-0",)) -> None:
        """Wait until each of these slots has finished further steps, in the same process."""
        before: dict[str, tuple[str, int]] = {}
        now: dict[str, tuple[str, int]] = {}

        def train() -> bool:
            before.clear()
            before.update(progress(self.job.status()))
            return before.keys() >= set(slots)

        def further() -> bool:
            now.clear()
            now.update(progress(self.job.status()))
            return all(slot in now and now[slot][1] > before[slot][1] for slot in slots)

        until(f"{', '.join(slots)} train", train, TRAINS_SECONDS_MAX)
        until(f"further steps of {', '.join(slots)}", further, TRAINS_SECONDS_MAX)
        assert all(now[slot][0] == before[slot][0] for slot in slots)

    def makes_again(self, former: Mapping[str, str]) -> None:
        """Wait until there is another pod for each of these, by name and UID."""

        def made() -> bool:
            now = self.uids()
            return all(now.get(name, uid) != uid for name, uid in former.items())

        until(f"{', '.join(former)} are made again", made)

    def run(self) -> str:
        """Wait until the status names the run, and return its id."""

        def named() -> str:
            return str(self.job.get().get("status", {}).get("run", ""))

        until("a run", lambda: bool(named()), REPORT_SECONDS_MAX)
        return named()

    def uids(self, role: str = "") -> dict[str, str]:
        """UIDs of the job's pods, by name."""
        return self.job.uids(role)

    def starts(self, learners: int = 2) -> dict[str, str]:
        """Apply the manifest, wait until it trains, and return the UIDs of its pods."""
        self.applies()
        self.trains(learners)
        self.pods = self.uids()
        return self.pods
