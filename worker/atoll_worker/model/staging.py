r"""Copies between a model and the shared memory: at once on a CPU, behind the step on CUDA.

The training thread must not wait for them, and the optimizer's next step must not see half of one.
With `CudaStaging` the shared memory is pinned memory, so that the device copies by itself, on two
*side streams* beside the user's *current stream*; events express the order.

    stream in:       [copy memory -> device] e1
                                               \
    current stream:  [step n] ... [wait for e1][assign][gather] [step n+1]
                                                         \ e2
    stream out:                                [wait for e2][copy gathered -> memory]

*Adopt.* The copy may begin while the device still computes the step, so that the event has mostly
happened when the current stream comes to it. On one stream for both ways it would stand behind the
captures of the boundary before, and the step would wait for these.

*Capture.* The slice is first gathered into new f32 tensors on the device, on the current stream:
the copy is a picture of one boundary, though the next step changes the model while the stream out
still copies. The price is 4 bytes of device memory per element that is under way.

`record_stream` keeps torch's allocator from giving memory to another tensor too early. Values are
assigned in place: CUDA graphs that read the parameters see what was adopted. Until `done()` of a
`Ticket` the device still uses the shared memory, so Replica sends no Boundary that names that work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog
import torch
from torch import Tensor

from atoll_worker.model.tickets import Done, Ticket

log = structlog.get_logger()

Pairs: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # (view of the model, view of shared memory)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A one-element host tensor that is valid when `ticket` is done."""

    host: Tensor
    ticket: Ticket


@torch.no_grad()
def assign(pairs: Pairs, blend: float) -> None:
    """theta <- blend * theta + (1 - blend) * value for pairs (theta, value), in theta's dtype.

    blend = 0 overwrites (Decoupled DiLoCo, arXiv 2604.21428); blend = 0.5 is Streaming DiLoCo's
    alpha (arXiv 2501.18512). Where theta is not finite it takes the value as it is: a learner that
    has diverged is healed by what it adopts. A blend of equal values is that value, bit for bit.
    """
    for theta, value in pairs:
        if blend == 0.0:
            theta.copy_(value)
        else:
            new = value.to(theta)
            theta.copy_(torch.where(theta.isfinite(), theta.lerp(new, 1.0 - blend), new))


@dataclass(frozen=True, slots=True)
class DirectStaging:
    """Moves values at a step boundary; for CPUs, and any device without one of its own.

    What is put in line takes effect in the order of the calls and of the user's own work.
    """

    @torch.no_grad()
    def capture(self, pairs: Pairs) -> Ticket:
        """Model -> shared memory, converted to f32."""
        for theta, region in pairs:
            region.copy_(theta)
        return Done()

    def adopt(self, pairs: Pairs, blend: float) -> Ticket:
        assign(pairs, blend)
        return Done()

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor of any dtype; the number is known when its ticket is done."""
        return Scalar(torch.tensor(value.item(), dtype=torch.float64), Done())

    def close(self) -> None:
        """Finish all copies and release the shared memory; nothing may be put in line after it."""


@dataclass(frozen=True, slots=True)
class EventTicket:
    """A CUDA event that was recorded behind the work."""

    event: torch.cuda.Event
    kept: Sequence[Tensor] = field(default=(), repr=False)  # alive until the work is done

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStaging(DirectStaging):
    """Copies on a side stream through pinned shared memory; see the module's docstring."""

    device: torch.device
    stream_in: torch.cuda.Stream  # shared memory -> device
    stream_out: torch.cuda.Stream  # device -> shared memory
    memory: Tensor = field(repr=False)  # uint8, all of the shared memory

    @torch.no_grad()
    def capture(self, pairs: Pairs) -> Ticket:
        gathered = [theta.to(torch.float32, copy=True).contiguous() for theta, _ in pairs]
        self.stream_out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream_out):
            for value, (_, region) in zip(gathered, pairs, strict=True):
                value.record_stream(self.stream_out)
                region.copy_(value, non_blocking=True)
            return EventTicket(self.stream_out.record_event(), gathered)

    @torch.no_grad()
    def adopt(self, pairs: Pairs, blend: float) -> Ticket:
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream_in):
            arrived = [region.to(self.device, non_blocking=True) for _, region in pairs]
            event = self.stream_in.record_event()
        current.wait_event(event)
        for value in arrived:
            value.record_stream(current)
        here = [(theta, value) for (theta, _), value in zip(pairs, arrived, strict=True)]
        assign(here, blend)
        return EventTicket(event)

    @torch.no_grad()
    def scalar(self, value: Tensor) -> Scalar:
        host = torch.empty(1, dtype=torch.float64, pin_memory=True)
        host.copy_(value.detach().reshape(1).to(torch.float64), non_blocking=True)
        event = torch.cuda.current_stream(self.device).record_event()
        return Scalar(host, EventTicket(event))

    def close(self) -> None:
        """Nothing is raised for a failed device: the error in the user's code is to be seen."""
        try:
            with torch.cuda.device(self.device):
                self.stream_in.synchronize()
                self.stream_out.synchronize()
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                torch.cuda.check_error(runtime.cudaHostUnregister(self.memory.data_ptr()))
        except RuntimeError as error:
            log.warning("the device does not end its copies", trouble=str(error))


def staging_for(device: torch.device, memory: Tensor) -> DirectStaging:
    """`memory` is the whole shared memory, uint8 [byte_count], on CUDA pinned until `close`."""
    if device.type != "cuda":
        return DirectStaging()
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        stream_in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream_out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return CudaStaging(device=device, stream_in=stream_in, stream_out=stream_out, memory=memory)
