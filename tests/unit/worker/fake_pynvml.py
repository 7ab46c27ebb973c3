"""NVML as `pynvml` shows it, with answers that a test gives: two GPUs, of which one has a part.

`answers` has what a call returns, raises (an NVMLError) or that it hangs (Hang), by the call's
name; `events` what the driver reports, in this order.
"""

# ruff: noqa: N802, N816 - the names are those of pynvml

import queue
import threading
from types import SimpleNamespace
from typing import Any

NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND, NVML_ERROR_TIMEOUT = 3, 6, 10
NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 12, 15, 16
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
nvmlEventTypeDoubleBitEccError = 2
nvmlEventTypeXidCriticalError = 8
WHOLE = 0xFFFFFFFF
UUIDS = ("aaaa", "bbbb")
PART = "cccc"  # of the second GPU: GPU instance 1, compute instance 0

answers: dict[str, Any] = {}
events: "queue.Queue[Any]" = queue.Queue()
registered: dict[Any, int] = {}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({15: "GPU is lost", 12: "NVML Shared Library Not Found"}.get(value, value))
        self.value = value


class Hang:
    """A call that does not come back before it is `over`."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()


def event(kind: int, data: int = 0, gpu: int = 0, part: tuple[int, int] = (WHOLE, WHOLE)) -> Any:
    first, second = part
    return SimpleNamespace(
        device=gpu, eventType=kind, eventData=data, gpuInstanceId=first, computeInstanceId=second
    )


def xid(number: int, gpu: int = 0, part: tuple[int, int] = (WHOLE, WHOLE)) -> Any:
    return event(nvmlEventTypeXidCriticalError, number, gpu, part)


def _answer(name: str, usual: Any) -> Any:
    given = answers.get(name, usual)
    if isinstance(given, Hang):
        given.begun.set()
        given.over.wait()
        return usual
    if isinstance(given, Exception):
        raise given
    return given


def nvmlInit() -> None:
    _answer("nvmlInit", None)


def nvmlEventSetCreate() -> str:
    return "set"


def nvmlEventSetWait_v2(event_set: Any, milliseconds: int) -> Any:
    assert event_set == "set"
    if "nvmlEventSetWait_v2" in answers:
        return _answer("nvmlEventSetWait_v2", None)
    try:
        return events.get(timeout=milliseconds / 1000)
    except queue.Empty:
        raise NVMLError(NVML_ERROR_TIMEOUT) from None


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    known = {f"GPU-{each}": number for number, each in enumerate(UUIDS)} | {f"MIG-{PART}": "part"}
    if uuid not in known:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return known[uuid]


def nvmlDeviceGetGpuInstanceId(handle: Any) -> int:
    assert handle == "part"
    return 1


def nvmlDeviceGetComputeInstanceId(handle: Any) -> int:
    assert handle == "part"
    return 0


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Any) -> int:
    assert handle == "part"
    return 1


def nvmlDeviceGetUUID(handle: int) -> Any:
    return _answer("nvmlDeviceGetUUID", f"GPU-{UUIDS[handle]}")


def nvmlDeviceGetIndex(handle: int) -> int:
    return handle


def nvmlDeviceGetSupportedEventTypes(handle: int) -> Any:
    assert handle in (0, 1)
    return _answer("nvmlDeviceGetSupportedEventTypes", 0xFF)


def nvmlDeviceRegisterEvents(handle: int, kinds: int, event_set: Any) -> None:
    assert event_set == "set"
    registered[handle] = kinds


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> Any:
    assert (kind, counter) == (NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)
    return _answer("nvmlDeviceGetTotalEccErrors", 7 * handle)


def nvmlDeviceGetRemappedRows(handle: int) -> Any:
    assert handle in (0, 1)
    return _answer("nvmlDeviceGetRemappedRows", (1, 1, 1, 0))
