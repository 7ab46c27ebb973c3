"""What NVML, the library of NVIDIA's driver, says of GPUs: faults that no new start here can mend.

`library` is the module `pynvml` of the package nvidia-ml-py. A fault is a sentence that names the
GPU as `nvidia-smi` does. These are faults:

    an XID       that no program causes: a program's own are those that NVIDIA's device plugin for
                 Kubernetes skips as well (v0.20.0, internal/rm/health.go)
    ECC          an uncorrectable error more than when this learner began
    a row        of the memory that is broken, and that the GPU cannot replace by a spare one
    a lost GPU   of which NVML says so, or that only a reset brings back

Of a part of a GPU (MIG) the whole GPU is looked at; an XID that names another part is not its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

XIDS_OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
NO_PART: Final = 0xFFFFFFFF  # an XID of a whole GPU has it in place of the numbers of a part
PREFIXES: Final = ("GPU-", "MIG-")  # CUDA leaves them out of a UUID

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Gpu:
    """One GPU that this process uses, or of which it uses a part."""

    handle: Any
    uuid: str
    name: str
    part: tuple[int, int] | None = None  # numbers of the GPU instance and the compute instance
    ecc_errors: int | None = None  # uncorrectable ones that were there before


@dataclass(slots=True, kw_only=True)
class Nvml:
    """Asks NVML, from one thread; `answers` counts the calls that have come back."""

    library: Any
    uuids: Sequence[str]  # of GPUs or parts of them, as CUDA says them
    gpus: list[Gpu] = field(default_factory=list)
    answers: int = 0
    events: Any = None

    @property
    def names(self) -> str:
        return " or ".join(gpu.name for gpu in self.gpus) or f"GPU {' or '.join(self.uuids)}"

    def open(self) -> None:
        """Find the GPUs and ask for their events. Raises the library's NVMLError."""
        self.library.nvmlInit()
        self.events = self._ask("nvmlEventSetCreate")
        self.gpus = [gpu for each in self.uuids if (gpu := self._found(each)) is not None]

    def wait(self, seconds: float) -> str:
        """The fault that an event tells of within this time; empty if none does."""
        nvml = self.library
        try:
            event = nvml.nvmlEventSetWait_v2(self.events, int(seconds * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:  # these GPUs have no events
                time.sleep(seconds)
            return ""
        finally:
            self.answers += 1
        return self._fault_of(event)

    def look(self) -> str:
        """The first fault that shows now; empty if none does."""
        return next(filter(None, map(self._fault_now, self.gpus)), "")

    def _ask(self, name: str, *arguments: object) -> Any:
        """The answer; None where GPU or driver have none. Raises NVMLError if the GPU is lost."""
        nvml = self.library
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            return None
        finally:
            self.answers += 1

    def _found(self, uuid: str) -> Gpu | None:
        nvml, part = self.library, None
        for prefix in PREFIXES:
            handle = self._ask("nvmlDeviceGetHandleByUUID", prefix + uuid)
            if handle is not None:
                break
        else:
            log.warning(f"the health of GPU {uuid} is not watched: NVML does not know it")
            return None
        if prefix == "MIG-":
            numbers = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
            first, second = (self._ask(name, handle) for name in numbers)
            part = (first, second)
            handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        whole = str(self._ask("nvmlDeviceGetUUID", handle))
        number = self._ask("nvmlDeviceGetIndex", handle)
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        if has := wanted & (self._ask("nvmlDeviceGetSupportedEventTypes", handle) or 0):
            self._ask("nvmlDeviceRegisterEvents", handle, has, self.events)
        return Gpu(handle=handle, uuid=whole, name=f"GPU {number} ({whole})", part=part)

    def _fault_of(self, event: Any) -> str:
        nvml = self.library
        try:
            uuid = self._ask("nvmlDeviceGetUUID", event.device)
        except nvml.NVMLError:
            uuid = None  # one that is lost may not say its name
        part = (event.gpuInstanceId, event.computeInstanceId)
        own = [
            gpu.name
            for gpu in self.gpus
            if uuid in (None, gpu.uuid) and (gpu.part in (None, part) or NO_PART in part)
        ]
        name, xid = " or ".join(own), event.eventData
        if not own:
            return ""
        if event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return f"{name} is broken: an uncorrectable ECC error"
        if xid in XIDS_OF_PROGRAMS:
            log.warning(f"{name}: the driver reports XID {xid}, an error of a program", xid=xid)
            return ""
        return f"{name} is broken: the driver reports XID {xid}"

    def _fault_now(self, gpu: Gpu) -> str:
        nvml = self.library
        kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        try:
            errors = self._ask("nvmlDeviceGetTotalEccErrors", gpu.handle, *kind) or 0
            rows = self._ask("nvmlDeviceGetRemappedRows", gpu.handle)
        except nvml.NVMLError as error:
            return f"{gpu.name} is broken: NVML says {error}"
        if gpu.ecc_errors is None:
            gpu.ecc_errors = errors
        if errors > gpu.ecc_errors:
            return f"{gpu.name} is broken: {errors - gpu.ecc_errors} new uncorrectable ECC errors"
        if rows is not None and rows[-1]:
            return f"{gpu.name} is broken: it has no spare row for a broken one of its memory"
        return ""
