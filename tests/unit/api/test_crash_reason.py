"""Why a process ended is one line, found in the end of its log whatever stands around it."""

import json

import pytest

from atoll_operator.api.status.crash_reason import CHARACTERS_MAX, LastWords, last_words

BOOM = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main()
  File "/home/me/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 99, in linear
    raise ValueError("boom")
ValueError: boom
"""
SAID = "ValueError: boom (/home/me/train.py:12)"
OF_LIBRARIES = BOOM.replace("/home/me/train.py", "/usr/lib/python3.11/runpy.py")

CHAINED = (
    """Traceback (most recent call last):
  File "/home/me/data.py", line 3, in read
    return table[name]
KeyError: 'name'

The above exception was the direct cause of the following exception:

"""
    + BOOM
)
IN_A_WORKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    for batch in loader:
  File "/usr/lib/python3/dist-packages/torch/_utils.py", line 694, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/torch/utils/data/_utils/worker.py", line 308, in _loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 5, in __getitem__
    raise ValueError("no record 7")
ValueError: no record 7
"""
LAUNCHER = """Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""


@pytest.mark.parametrize(
    "log",
    [
        BOOM,
        f"step 1\nstep 2\n{BOOM}",
        CHAINED,
        f" 10%|#     | 4/40 [00:01<00:09, 4.00it/s]\r 12%|#    | 5/40 [00:01<00:09]{BOOM}",
        f"{BOOM}\r 12%|#     | 5/40 [00:01<00:08,  4.00it/s]\n",
        f"{BOOM}/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
        "resource_tracker: There appear to be 1 leaked semaphore objects to clean up\n"
        "  warnings.warn('resource_tracker')\n",
        f"{BOOM}Exception ignored in: <function _Pool.__del__ at 0x7f00deadbeef>\n"
        'Traceback (most recent call last):\n  File "/home/me/pool.py", line 9, in __del__\n'
        "    self.close()\nAttributeError: 'NoneType' object has no attribute 'close'\n",
        f"{BOOM}wandb: You can sync this run to the cloud\n",
        f'{BOOM}{{"event": "disconnected", "reason": "over", "level": "info"}}\n',
        f"{BOOM}{LAUNCHER}",
        "\n".join(f"[rank0]: {line}" for line in BOOM.splitlines()),
        "\n".join(f"[rank0]: [rank0]: {line}" for line in BOOM.splitlines()),  # and a launcher's
        f"\x1b[31m{BOOM}\x1b[0m\n",
        BOOM.split("\n", 1)[1],  # the kubelet keeps 2048 bytes
        json.dumps({"event": "the function failed", "level": "error", "exception": BOOM.strip()}),
    ],
)
def test_an_exception_is_found_whatever_stands_around_it(log: str) -> None:
    assert str(last_words(log)) == SAID


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (IN_A_WORKER, "ValueError: no record 7 (/home/me/data.py:5)"),
        ("step 1\nno data at /x\n", "no data at /x"),
        ("step 1\n  an indented line\n", "step 1"),
        (
            "Fatal Python error: Segmentation fault\n\nThread 0x7f5390 (most recent call first):\n"
            '  File "/usr/lib/python3.11/threading.py", line 9 in wait\n\n'
            "Current thread 0x7f5391 (most recent call first):\n"
            '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
            '  File "/a/train.py", line 3 in f\n  File "/a/train.py", line 4 in <module>\n\n'
            "Extension modules: numpy, torch._C (total: 9)\n",
            "Fatal Python error: Segmentation fault (/a/train.py:3)",
        ),
        (
            "terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  CUDA error: an illegal memory access was encountered\n"
            "Exception raised from c10_cuda_check at Exception.cpp:44\n"
            "Fatal Python error: Aborted\n\nCurrent thread 0x7f5391 (most recent call first):\n"
            '  File "/a/train.py", line 3 in f\n  File "/a/train.py", line 4 in <module>\n',
            "what():  CUDA error: an illegal memory access was encountered (/a/train.py:3)",
        ),
        ("SpecError: tokens: is 0; give the tokens\nbye\n", "tokens: is 0; give the tokens"),
        ("python: can't open file 'train.py': [Errno 2]\n", "python: can't open file 'train.py'"),
        ('{"field": "data", "problem": "x", "remedy": "y", "event": "bad"}\n', "data: x; y"),
        ('{"event": "ended", "reason": "another layout"}\n', "another layout"),
        ('{"event": "ended", "level": "error", "reason": "no"}\nbye\n', "no"),
        ('{"event": "failed", "exception": "Traceback\\n  a\\nValueError: no"}', "ValueError: no"),
        (
            '  File "train.py", line 3\n    x = (\n        ^\nSyntaxError: never closed',
            "train.py:3",
        ),
        (
            'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n'
            "    net.load_state_dict({})\nRuntimeError: Error(s) in loading state_dict for Net:\n"
            '\tMissing key(s) in state_dict: "weight". \n',
            'Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "weight".',
        ),
        (
            'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n'
            "    step()\natoll_protos.errors.SpecError: tokens: is 0; give the tokens\n",
            "tokens: is 0; give the tokens (/a/train.py:3)",
        ),
        (
            f"{BOOM}atoll: rank 1 left the Learner while this rank trains on\n",
            f"rank 1 left the Learner while this rank trains on: {SAID}",
        ),
        ("atoll: rank 1 left the Learner\n", "rank 1 left the Learner"),
        (" 10%|#     | 4/40 [00:01<00:09, 4.00it/s]\r", "10%|#"),
        ("", ""),
        ("\n \n", ""),
        (OF_LIBRARIES, "torch/nn/functional.py:99"),  # where there is no other
    ],
)
def test_other_ends_of_a_log_are_told_as_they_are(log: str, words: str) -> None:
    said = str(last_words(log))
    assert words in said
    assert bool(words) == bool(said)
    assert "\n" not in said


def test_long_words_are_cut() -> None:
    assert len(last_words("x" * 10_000).text) == CHARACTERS_MAX


def test_words_are_the_same_apart_from_addresses_of_objects() -> None:
    one = LastWords(text="no <Table object at 0x7f00deadbeef>", where="a.py:1")
    assert one.same_as(LastWords(text="no <Table object at 0x7f11deadbeef>", where="a.py:1"))
    assert not one.same_as(LastWords(text=one.text, where="a.py:2"))
    assert not LastWords().same_as(LastWords())
