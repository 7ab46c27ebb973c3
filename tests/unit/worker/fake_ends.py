"""A transport without a training process and shards: what it was told, and what it sends."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Form, Wire
from atoll_worker.link import shared_memory
from atoll_worker.link.messages import Configure
from atoll_worker.link.shared_memory import memory_plan
from atoll_worker.rules.learner_state import SendOffer
from atoll_worker.transport.carrier import Numbers
from atoll_worker.transport.control_stream import Outgoing, Payload
from atoll_worker.transport.transport import Transport

COUNT = 256
KEY = (0, 0)
OFFER = pb.Offer(slice=0, base=3, capture=2)


def full(value: float) -> arrays.Base:
    """A base on an f32 wire."""
    values = np.full(COUNT, value, np.float32)
    return arrays.packed(arrays.byte_view(values), pb.F32, Form(0, COUNT))


class End:
    """The training process: nobody is there."""

    def __init__(self, run_file: RunFile) -> None:
        spec = TensorSpec(name="t", shape=(COUNT,), dtype="float32", merge="rda")
        self.configure = Configure(
            run_file=run_file,
            layout=build_layout([spec], 1, 1),
            slot="here-0",
            uid="uid",
            instance="uid-1",
            endpoints=("nowhere:1",),
            telemetry_folder="",
            observer=False,
        )

    def attach(self, *_: Any) -> None: ...

    def send(self, command: Any) -> None: ...


class Telemetry:
    """Knows what is not on file yet."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []

    def write(self, fields: dict[str, Any]) -> None:
        self.waiting.append(fields)

    def flush(self) -> None:
        self.waiting.clear()


class Client:
    """Keeps what is to be sent."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []
        self.messages: list[pb.ToShard] = []

    def send_bulk(self, payload: Payload) -> None:
        self.payloads.append(payload)

    def send(self, message: pb.ToShard) -> None:
        self.messages.append(message)


class Rig:
    """A transport, its memory, and what its rules were told."""

    def __init__(
        self, wire_down: Wire = Wire.F32, wire_up: Wire = Wire.F32, **configure: Any
    ) -> None:
        sync = Sync(fragments=1, period=4, wire_up=wire_up, wire_down=wire_down)
        run_file = RunFile(
            job="j", regions=(Region(name="here", learners=1),), shards=1, steps=9, sync=sync
        )
        end = End(run_file)
        end.configure = replace(end.configure, **configure)
        plan = memory_plan(end.configure.layout, sync, observer=False)
        descriptor = shared_memory.create()
        shared_memory.resize(descriptor, plan)
        self.memory = shared_memory.attach(plan, descriptor)
        os.close(descriptor)
        self.numbers = Numbers(self.memory, sync, end.configure.layout)
        self.transport = Transport(
            end=end,  # type: ignore[arg-type]
            numbers=self.numbers,
            telemetry=Telemetry(),  # type: ignore[arg-type]
            open_channel=lambda *_: None,  # type: ignore[arg-type]
            now=lambda: 0.0,
        )
        self.client = Client()
        self.transport.clients = [self.client]  # type: ignore[list-item]
        self.lost: list[pb.Offer] = []
        self.transport.exchange.capture_lost = (  # type: ignore[method-assign]
            lambda shard, offer: self.lost.append(offer) or []  # type: ignore[func-returns-value]
        )
        self.transport.values.captures = {KEY: self.memory.counter(*KEY)}

    def capture(self, value: float) -> None:
        """The training process copies the slice, whole."""
        self.memory.turn(*KEY)
        self.memory.capture(*KEY)[:] = np.full(COUNT, value, np.float32).tobytes()
        self.memory.turn(*KEY)

    def captured(self, value: float) -> None:
        """And its Boundary has come."""
        self.capture(value)
        self.transport.values.captures[KEY] += 2

    def sent(self, meanwhile: Callable[[], None] = lambda: None) -> Outgoing | None:
        """What leaves for an offer; `meanwhile` happens while its difference is being formed."""
        form = self.numbers.difference

        def forming(*arguments: Any) -> Any:
            meanwhile()
            return form(*arguments)

        numbers: Any = self.numbers
        numbers.difference = forming

        async def scenario() -> Outgoing | None:
            self.transport.feed([SendOffer(0, OFFER)])
            (payload,) = self.client.payloads
            return await payload()

        return asyncio.run(scenario())
