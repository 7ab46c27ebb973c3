"""A learner without torch, for tests of the operator: `atoll-worker light:main` in a real pod.

Where nine nodes share two cores its pod trains within a second or two; torch alone takes ten to be
imported. Beside the product's own transport process, with the rules of a learner, a trainer of a
few lines: it obeys at its step boundaries as `atoll_worker.training.replica` does, and a step
moves each value of a small model by chance. `training.pace` puts it into a manifest, and the
fixture `namespace` brings its text as a ConfigMap.
"""

import os
import random
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec
from atoll_worker.errors import LearnerError, TransportLostError, reason_of
from atoll_worker.job import read_job
from atoll_worker.link import messages
from atoll_worker.link.shared_memory import SharedMemory, memory_plan
from atoll_worker.link.socket import Link
from atoll_worker.script.termination import ALL_DONE, Termination, say
from atoll_worker.training import replica

LAYERS = tuple(
    TensorSpec(name=f"layer.{n}", shape=(8, 8), dtype="float32", merge="rda") for n in range(12)
)
FIRST_VALUE = 0.5
POLL_SECONDS = 0.2

Key = tuple[int, int]  # (shard, fragment): a slice


def main() -> None:
    """Train until the job is final; options are as `--batch=2`."""
    options = {"batch": 2.0, "context": 64.0, "step-milliseconds-min": 300.0}
    options |= {name[2:]: float(value) for name, value in (w.split("=") for w in sys.argv[1:])}
    if options["batch"] < 1:
        raise SpecError("batch", f"is {options['batch']}", "give 1 or more")
    tokens = int(options["batch"] * options["context"])
    light = Light.made(random.Random(os.environ.get("ATOLL_SLOT")))
    try:
        light.joins()
        while not light.finished:
            light.steps(tokens, options["step-milliseconds-min"] / 1000)
    except BaseException as error:
        light.leaves(reason_of(error))
        raise
    light.leaves(ALL_DONE)


@dataclass(slots=True, kw_only=True)
class Light:
    """A model's values, and what the transport process has asked for."""

    chance: random.Random
    child: replica.TransportProcess
    memory: SharedMemory
    lockstep: bool
    total_ticks: int | None
    values: "dict[Key, array[float]]"  # no subscript at run time before Python 3.12
    start: messages.Start | None = None
    tick: int = 0
    proceed: bool = False
    finished: bool = False
    own_steps: int = 0
    cursor: int = 0
    termination: Termination = field(default_factory=Termination)

    @classmethod
    def made(cls, chance: random.Random) -> "Light":
        """With a transport process, to which the model is described."""
        job = read_job()
        run_file = job.run_file
        layout = run_file.layout(LAYERS)
        child = replica.begin()
        memory = child.attach(memory_plan(layout, run_file.sync))
        values = {
            key: array("f", [FIRST_VALUE]) * form.element_count
            for key, form in zip(memory.plan.slices, memory.plan.forms, strict=True)
        }
        light = cls(
            chance=chance,
            child=child,
            memory=memory,
            lockstep=run_file.sync.lockstep,
            total_ticks=run_file.steps,
            values=values,
        )
        light.termination.install()
        for key in values:
            light.captures(key)
        light.link.send(
            messages.Configure(
                run_file=run_file,
                layout=layout,
                slot=job.slot,
                uid=job.uid,
                instance=job.instance,
                endpoints=job.endpoints,
                tls_folder=job.tls_folder,
                telemetry_folder=job.telemetry_folder,
                observer=False,
            )
        )
        return light

    @property
    def link(self) -> Link:
        return self.child.link

    def joins(self) -> None:
        self.waits(lambda: self.start is not None)
        assert self.start is not None
        self.cursor = self.start.cursor
        sys.stderr.write(f"training as incarnation {self.start.incarnation}\n")

    def steps(self, tokens: int, seconds: float) -> None:
        """One step, which takes at least so long, and its boundary."""
        self.termination.check()
        time.sleep(seconds)
        for each in self.values.values():
            for place, value in enumerate(each):
                each[place] = value + self.chance.uniform(-1e-3, 1e-3)
        self.own_steps += 1
        self.cursor += 1
        self.proceed = False
        with self.termination.deferred():
            self.boundary(tokens, seconds)
            if self.lockstep:
                self.waits(lambda: self.proceed or self.finished)

    def boundary(self, tokens: int = 0, seconds: float | None = None) -> None:
        """Do what was asked for, adoptions first; without `seconds` no step was made."""
        adopted: list[tuple[int, int, int]] = []
        captured: list[Key] = []
        for message in self.link.receive():
            match message:
                case messages.Adopt(shard=shard, fragment=fragment, number=number, blend=blend):
                    self.adopts((shard, fragment), blend)
                    adopted.append((shard, fragment, number))
                case messages.Capture(slices=slices):
                    captured += slices
                case messages.Start():
                    self.start = message
                case messages.Proceed():
                    self.proceed = True
                case messages.Finished(again=keys):
                    self.finished = True
                    for key in keys:
                        self.adopts(key, 0.0)
                case messages.Fail(exit_code=exit_code, reason=reason):
                    raise LearnerError(exit_code, reason)
                case messages.Tick(tick=tick):
                    self.tick = tick
        for key in captured:
            self.captures(key)
        if self.link.closed and not self.finished:
            raise TransportLostError("the transport process has ended; start this one again")
        if seconds is None and not adopted and not captured:
            return
        self.link.send(
            messages.Boundary(
                own_steps=self.own_steps,
                tokens=tokens,
                loss=1.0 + 1.0 / (1 + self.tick),
                step_seconds=seconds or 0.0,
                blocked_seconds=0.0,
                cursor=self.cursor,
                adopted=tuple(adopted),
                captured=tuple(captured),
                again=seconds is None,
            )
        )

    def waits(self, over: Callable[[], bool]) -> None:
        """Obey until it is over: before the first step, and in lock-step modes."""
        while not over():
            self.termination.check()
            self.link.wait(POLL_SECONDS)
            self.boundary()

    def adopts(self, key: Key, blend: float) -> None:
        """Mix a slice's value that has come with the own one; bf16 is the upper half of f32."""
        data = bytes(self.memory.adopt(*key))
        if self.memory.adopt_encoding(*key) == pb.BF16:
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[0::2], data[1::2]
            data = bytes(wide)
        come, own = array("f", data), self.values[key]
        mixed = (blend * mine + (1 - blend) * other for mine, other in zip(own, come, strict=True))
        self.values[key] = array("f", mixed)

    def captures(self, key: Key) -> None:
        self.memory.turn(*key)
        self.memory.capture(*key)[:] = self.values[key].tobytes()
        self.memory.turn(*key)

    def leaves(self, reason: str) -> None:
        """Report the reason to the job, and in a pod to the kubelet."""
        with self.termination.leaving():
            say(reason, self.tick, self.total_ticks)
            if not self.link.closed:
                self.link.send(messages.Leaving(reason=reason))
            replica.stop(self.child.process, self.link)
