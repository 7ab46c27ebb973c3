"""What of NVML's answers is a fault of a GPU. The answers are replaced at the border of pynvml."""

import queue
from typing import Any

import pytest
from structlog.testing import capture_logs

from atoll_worker.training.gpu_faults import Nvml
from unit.worker import fake_pynvml as fake

FIRST, SECOND = "GPU 0 (GPU-aaaa)", "GPU 1 (GPU-bbbb)"
BROKEN = f"{FIRST} is broken: "
ECC = fake.nvmlEventTypeDoubleBitEccError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "answers", {})
    monkeypatch.setattr(fake, "events", queue.Queue())
    monkeypatch.setattr(fake, "registered", {})


def opened(*uuids: str) -> Nvml:
    nvml = Nvml(library=fake, uuids=uuids or ("aaaa",))
    nvml.open()
    return nvml


def said_of(event: Any, *uuids: str) -> str:
    nvml = opened(*uuids)
    fake.events.put(event)
    return nvml.wait(60.0)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        *((fake.xid(number), f"{BROKEN}the driver reports XID {number}") for number in (48, 79)),
        *((fake.xid(number), "") for number in (13, 31, 43, 45, 68, 109)),  # of programs
        (fake.xid(79, gpu=1), ""),  # another learner's
        (fake.event(ECC), f"{BROKEN}an uncorrectable ECC error"),
    ],
)
def test_what_the_driver_reports_of_our_gpu_is_a_fault_unless_a_program_causes_it(
    event: Any, fault: str
) -> None:
    with capture_logs() as lines:
        assert said_of(event) == fault
    told = [each["event"] for each in lines]
    of_a_program = event.device == 0 and not fault
    assert told == [f"{FIRST}: the driver reports XID {event.eventData}, an error of a program"] * (
        of_a_program
    )


def test_events_are_asked_for_as_far_as_a_gpu_has_them() -> None:
    opened("aaaa", "bbbb")
    assert fake.registered == {0: 10, 1: 10}
    fake.registered.clear()
    fake.answers["nvmlDeviceGetSupportedEventTypes"] = 1
    opened("aaaa")
    fake.answers["nvmlDeviceGetSupportedEventTypes"] = fake.NVMLError(fake.NVML_ERROR_NOT_SUPPORTED)
    opened("aaaa")
    assert fake.registered == {}


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ((1, 0), True),
        ((2, 0), False),  # a neighbour's
        ((fake.WHOLE, fake.WHOLE), True),
    ],
)
def test_of_a_part_of_a_gpu_the_whole_is_looked_at_but_not_the_xids_of_other_parts(
    part: tuple[int, int], fault: bool
) -> None:
    said = said_of(fake.xid(79, gpu=1, part=part), fake.PART)
    assert said == (f"{SECOND} is broken: the driver reports XID 79" if fault else "")
    assert opened(fake.PART).names == SECOND


def test_an_xid_of_a_gpu_that_has_lost_its_name_is_held_against_all_that_it_may_be() -> None:
    nvml = opened("aaaa", "bbbb")
    fake.answers["nvmlDeviceGetUUID"] = fake.NVMLError(fake.NVML_ERROR_GPU_IS_LOST)
    fake.events.put(fake.xid(79))
    assert nvml.wait(60.0) == f"{FIRST} or {SECOND} is broken: the driver reports XID 79"


@pytest.mark.parametrize(
    ("call", "answer", "fault"),
    [
        ("nvmlDeviceGetTotalEccErrors", 2, "2 new uncorrectable ECC errors"),
        ("nvmlDeviceGetTotalEccErrors", 0, ""),
        ("nvmlDeviceGetRemappedRows", (1, 1, 1, 1), "it has no spare row for a broken one of its "
         "memory"),
        ("nvmlDeviceGetRemappedRows", fake.NVMLError(15), "NVML says GPU is lost"),
        ("nvmlDeviceGetRemappedRows", fake.NVMLError(16), "NVML says 16"),
        ("nvmlDeviceGetRemappedRows", fake.NVMLError(3), ""),  # older GPUs remap none
        ("nvmlDeviceGetTotalEccErrors", fake.NVMLError(3), ""),  # ECC is off
    ],
)  # fmt: skip
def test_a_look_finds_what_has_come_since_the_learner_began(
    call: str, answer: Any, fault: str
) -> None:
    nvml = opened("aaaa")
    assert nvml.look() == ""
    fake.answers[call] = answer
    assert nvml.look() == (fault and BROKEN + fault)


def test_ecc_errors_that_were_there_before_are_no_fault() -> None:
    nvml = opened("bbbb")  # which has 7
    assert nvml.look() == ""
    fake.answers["nvmlDeviceGetTotalEccErrors"] = 8
    assert nvml.look() == f"{SECOND} is broken: 1 new uncorrectable ECC errors"


def test_a_gpu_that_nvml_does_not_know_is_named_and_the_others_are_watched() -> None:
    with capture_logs() as lines:
        assert opened("dddd", "aaaa").names == FIRST
    assert [each["event"] for each in lines] == [
        "the health of GPU dddd is not watched: NVML does not know it"
    ]


def test_every_call_that_comes_back_counts_as_an_answer() -> None:
    nvml = opened("aaaa")
    for call in (nvml.look, lambda: nvml.wait(0.0)):
        before = nvml.answers
        call()
        assert nvml.answers > before
    fake.answers["nvmlEventSetWait_v2"] = fake.NVMLError(fake.NVML_ERROR_NOT_SUPPORTED)
    before = nvml.answers
    assert nvml.wait(0.0) == ""
    assert nvml.answers == before + 1
