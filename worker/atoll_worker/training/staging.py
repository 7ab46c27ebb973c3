"""Copies between a model and the shared memory: at once on CPU, beside the step on CUDA."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Pairs: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # (view of the model, view of shared memory)


class Ticket(Protocol):
    """Device work that has been put in line."""

    def done(self) -> bool:
        """Whether it has finished; never waits."""

    def wait(self) -> None:
        """Return when it has finished."""


class Staging(Protocol):
    """Moves values at a step boundary without waiting for the device.

    What is put in line takes effect in the order of the calls and of the user's own work on the
    current stream; the shared memory may be touched by others once the ticket is done.
    """

    def capture(self, pairs: Pairs) -> Ticket:
        """Model -> shared memory (f32)."""

    def adopt(self, pairs: Pairs, blend: float) -> Ticket:
        """Shared memory -> model: theta <- blend * theta + (1 - blend) * value."""

    def scalar(self, value: Tensor) -> "Scalar":
        """A number that will be known when its ticket is done."""

    def close(self) -> None:
        """Let go of the shared memory."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A one-element host tensor that is valid when `ticket` is done."""

    host: Tensor
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Done:
    """The ticket of work that was done on the spot."""

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """At once."""


@torch.no_grad()
def assign(pairs: Pairs, blend: float) -> None:
    """theta <- blend * theta + (1 - blend) * value for pairs (theta, value), in theta's dtype."""
    for theta, value in pairs:
        if blend == 0.0:
            theta.copy_(value)
        else:
            theta.lerp_(value.to(theta), 1.0 - blend)


@dataclass(frozen=True, slots=True)
class DirectStaging:
    """For CPU, and for any device without an implementation of its own: waits for each copy."""

    @torch.no_grad()
    def capture(self, pairs: Pairs) -> Ticket:
        """Copy now."""
        for theta, region in pairs:
            region.copy_(theta)
        return Done()

    def adopt(self, pairs: Pairs, blend: float) -> Ticket:
        """Copy now."""
        assign(pairs, blend)
        return Done()

    def scalar(self, value: Tensor) -> Scalar:
        """Read now."""
        return Scalar(torch.tensor(value.item(), dtype=torch.float64), Done())

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class EventTicket:
    """A CUDA event behind the work."""

    event: torch.cuda.Event
    kept: Sequence[Tensor] = field(default=(), repr=False)  # alive until the work is done

    def done(self) -> bool:
        """Ask the driver; does not wait."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Block this thread, and nothing else, until the event."""
        self.event.synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStaging:
    """Copies on a side stream through the shared memory, registered as pinned.

    A capture is gathered on the device first, on the current stream, so that the next step may
    change the model while the copy to the host runs. An adoption's copy to the device runs on
    the side stream and the current stream waits for it, the thread does not.
    """

    device: torch.device
    stream: torch.cuda.Stream
    memory: Tensor = field(repr=False)  # uint8, all of the shared memory

    @torch.no_grad()
    def capture(self, pairs: Pairs) -> Ticket:
        """Gather on the current stream, copy on the side stream."""
        gathered = [theta.to(torch.float32, copy=True).contiguous() for theta, _ in pairs]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for value, (_, region) in zip(gathered, pairs, strict=True):
                value.record_stream(self.stream)
                region.copy_(value, non_blocking=True)
            return EventTicket(self.stream.record_event(), gathered)

    @torch.no_grad()
    def adopt(self, pairs: Pairs, blend: float) -> Ticket:
        """Copy on the side stream, assign on the current one behind it."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            arrived = [region.to(self.device, non_blocking=True) for _, region in pairs]
            event = self.stream.record_event()
        current.wait_event(event)
        for value in arrived:
            value.record_stream(current)
        assign([(theta, value) for (theta, _), value in zip(pairs, arrived, strict=True)], blend)
        return EventTicket(event)

    @torch.no_grad()
    def scalar(self, value: Tensor) -> Scalar:
        """Copy to a pinned number on the current stream."""
        host = torch.empty(1, dtype=torch.float64, pin_memory=True)
        host.copy_(value.detach().reshape(1).to(torch.float64), non_blocking=True)
        event = torch.cuda.current_stream(self.device).record_event()
        return Scalar(host, EventTicket(event))

    def close(self) -> None:
        """Finish the copies, then unregister the memory."""
        self.stream.synchronize()
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostUnregister(self.memory.data_ptr()))


def staging_for(device: torch.device, memory: Tensor) -> Staging:
    """The implementation for a model's device; on CUDA `memory` (uint8) becomes pinned."""
    if device.type != "cuda":
        return DirectStaging()
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return CudaStaging(device=device, stream=stream, memory=memory)
