from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog.testing
import torch

from atoll_worker.model.staging import CudaStaging, DirectStaging, staging_for


def test_a_capture_is_exact_in_f32_for_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        theta = torch.randn(5, 3).to(dtype)
        region = torch.zeros(15)
        assert DirectStaging().capture([(theta, region.view(5, 3))]).done()
        assert torch.equal(region.view(5, 3), theta.float())


def test_an_adoption_overwrites_or_blends_and_leaves_autograd_out() -> None:
    theta = torch.nn.Parameter(torch.full((4,), 2.0))
    value = torch.full((4,), 1.0, dtype=torch.bfloat16)
    for blend, expected in ((0.75, 1.75), (0.0, 1.0)):
        DirectStaging().adopt([(theta, value)], blend)
        assert theta.tolist() == [expected] * 4
    assert theta.requires_grad
    assert theta.grad_fn is None


def test_a_number_that_was_read_stays_when_its_tensor_changes() -> None:
    value = torch.tensor([3.5])
    scalar = staging_for(torch.device("cpu"), torch.zeros(8, dtype=torch.uint8)).scalar(value)
    value.zero_()
    assert scalar.host.item() == 3.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blend", [0.0, 0.3, 0.5, 0.9])
def test_a_value_of_the_learners_own_keeps_its_bits_rule_18(
    dtype: torch.dtype, blend: float
) -> None:
    """[Rotary frequencies rounded to bf16 turn position 4096 by more than a radian.]"""
    frequencies = (10000.0 ** -(torch.arange(0, 64, 2) / 64)).to(dtype)
    buffer = frequencies.clone()
    DirectStaging().adopt([(buffer, frequencies.float())], blend)
    assert torch.equal(buffer, frequencies)


@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_a_learner_that_has_diverged_is_healed_by_what_it_adopts(blend: float) -> None:
    theta = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    DirectStaging().adopt([(theta, torch.full((4,), 3.0))], blend)
    assert theta.tolist() == [3.0, 3.0, 3.0, 2.0 if blend else 3.0]


class Device:
    """Stands in for torch.cuda: notes what is put in line, and on which stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.broken = False
        current = Stream("current", self)
        patches: dict[str, Any] = {
            "current_stream": lambda device: current,
            "stream": self.on,
            "device": lambda device: nullcontext(),
            "cudart": lambda: SimpleNamespace(cudaHostUnregister=self.unregister),
            "check_error": lambda error: None,
        }
        for name, stand_in in patches.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        self.staging = CudaStaging(
            device=torch.device("cpu"),
            stream_in=cast(torch.cuda.Stream, Stream("in", self)),
            stream_out=cast(torch.cuda.Stream, Stream("out", self)),
            memory=torch.zeros(8, dtype=torch.uint8),
        )

    @contextmanager
    def on(self, stream: "Stream") -> Iterator[None]:
        self.log.append(f"copies on {stream.name}")
        yield

    def unregister(self, address: int) -> None:
        self.log.append("unregister")

    def took(self) -> list[str]:
        log, self.log = self.log, []
        return log


@dataclass
class Stream:
    name: str
    device: Device

    def wait_stream(self, other: "Stream") -> None:
        self.device.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.device.log.append(f"event on {self.name}")
        return f"event on {self.name}"

    def wait_event(self, event: str) -> None:
        self.device.log.append(f"{self.name} waits for {event}")

    def synchronize(self) -> None:
        self.device.log.append(f"the thread waits for {self.name}")
        if self.device.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_on_cuda_a_step_waits_only_for_what_it_adopts(monkeypatch: pytest.MonkeyPatch) -> None:
    device, theta, region = Device(monkeypatch), torch.zeros(4), torch.ones(4)
    address = theta.data_ptr()
    device.staging.capture([(theta, torch.zeros(4))])
    assert device.took() == ["out waits for current", "copies on out", "event on out"]
    device.staging.adopt([(theta, region)], 0.0)
    assert device.took() == ["copies on in", "event on in", "current waits for event on in"]
    assert theta.tolist() == [1.0] * 4
    assert theta.data_ptr() == address


def test_on_cuda_a_capture_is_a_picture_of_its_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step may change the model while the copy is under way."""
    device = Device(monkeypatch)
    theta, region = torch.ones(2, 3, dtype=torch.bfloat16).t(), torch.zeros(3, 2)
    gathered: list[torch.Tensor] = []
    copy_ = torch.Tensor.copy_

    def late(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        assert non_blocking
        gathered.append(source)

    monkeypatch.setattr(torch.Tensor, "copy_", late)
    device.staging.capture([(theta, region)])
    monkeypatch.undo()
    theta.fill_(7.0)
    (source,) = gathered
    assert source.is_contiguous()
    assert copy_(region, source).tolist() == [[1.0] * 2] * 3


def test_on_cuda_a_failed_device_hides_no_error_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.staging.close()
    assert device.took() == ["the thread waits for in", "the thread waits for out", "unregister"]
    device.broken = True
    with structlog.testing.capture_logs() as lines:
        device.staging.close()
    assert "device-side assert" in lines[0]["trouble"]
