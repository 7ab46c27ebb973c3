"""Any script, started by `python train.py`, exits with the codes of Atoll's errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Each script is a fork of one process that has imported torch.
PROGRAM = """
import gc, json, os, sys, tempfile, torch, atoll
from atoll_worker.errors import LearnerError, install_excepthook
gc.freeze()  # else each fork looks at all of torch at its end
ends = {}
for name, script in json.load(sys.stdin).items():
    errors = tempfile.TemporaryFile("w+")
    if not (pid := os.fork()):
        os.dup2(errors.fileno(), 2)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    errors.seek(0)
    ends[name] = code, errors.read()
else:
    sys.exit(print(json.dumps(ends)))
exec(script)
"""
HOOK = """
before = sys.excepthook
def mine(*given):
    print("mine was called", file=sys.stderr)
    before(*given)
sys.excepthook = mine
"""
STEP = "with atoll.Learner(torch.nn.Linear(2, 2)) as learner:\n    learner.step(tokens=0)"
GROUP = (
    "torch.distributed.init_process_group("
    "'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)"
)
IN_A_GROUP = f"install_excepthook()\n{GROUP}\n"
OF_A_RANK = f"""
{GROUP}
install_excepthook()
raise atoll.SpecError('tokens', 'is 0', 'give more')
"""
LEARNER_ERRORS = (65, 75, 77)
SCRIPTS = {
    "spec error": STEP,
    "job": "import os\nos.environ['ATOLL_SLOT'] = 'us-0'\natoll.job()",
    **{
        f"learner error {code}": f"atoll.Learner(None)\nraise LearnerError({code}, 'because')"
        for code in LEARNER_ERRORS
    },
    "other error": "atoll.Learner(None)\nraise ValueError('mine')",
    "exit": "atoll.Learner(None)\nsys.exit(3)",
    "hook": f"{HOOK}\ninstall_excepthook()\natoll.Learner(None)\natoll.Learner(None).step()",
    "hook, spec error": f"{HOOK}\natoll.Learner(torch.nn.Linear(2, 2)).open().step(tokens=-1)",
    "group, spec error": f"{IN_A_GROUP}raise atoll.SpecError('--data', 'names no folder', 'give')",
    "group, learner error": f"{IN_A_GROUP}raise LearnerError(77, 'another has the slot')",
    "rank": OF_A_RANK,
    "rank, hook": HOOK + OF_A_RANK,
}


Ends = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ends() -> Ends:
    """The exit code of every script, and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(SCRIPTS),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}


def test_a_spec_error_is_one_line_and_exit_code_64(ends: Ends) -> None:
    code, said = ends["spec error"]
    assert code == 64
    assert said.splitlines()[1:] == [
        "SpecError: tokens: is 0; give the tokens trained since the last step"
    ]
    code, said = ends["job"]
    assert (code, said.count("\n")) == (64, 1)
    assert said.startswith("SpecError: ATOLL_RUN_FILE: is not set; start this under")


def test_a_spec_error_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch, atoll\n\n\n{STEP}\n")
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    line = len(script.read_text().splitlines())
    assert done.stderr.endswith(f"since the last step ({script}:{line})\n")


@pytest.mark.parametrize("code", LEARNER_ERRORS)
def test_a_learner_error_keeps_its_traceback_and_has_its_exit_code(code: int, ends: Ends) -> None:
    ended, said = ends[f"learner error {code}"]
    assert ended == code
    assert said.startswith("Traceback (most recent call last)")
    assert said.endswith("LearnerError: because\n")


TOKENS = "SpecError: tokens: is -1; give the tokens trained since the last step\n"


@pytest.mark.parametrize(
    ("script", "expected", "last"),
    [("hook", 1, ""), ("hook, spec error", 64, TOKENS), ("rank, hook", 64, "")],  # under torch's
)
def test_an_earlier_hook_is_called_once(script: str, expected: int, last: str, ends: Ends) -> None:
    code, said = ends[script]
    assert (code, said.count("mine was called")) == (expected, 1)
    assert said.endswith(last)


@pytest.mark.parametrize(
    ("script", "expected", "words"),
    [
        ("group, spec error", 64, "SpecError: --data: names"),
        ("group, learner error", 77, "LearnerError: another has the slot"),
        ("rank", 64, "SpecError: tokens: is 0; give more\n"),
        ("other error", 1, "\nValueError: mine\n"),
        ("exit", 3, ""),
    ],
)
def test_errors_have_their_codes_also_under_the_hook_of_torch_distributed(
    script: str, expected: int, words: str, ends: Ends
) -> None:
    code, said = ends[script]
    assert (code, said.count(words) if words else 1) == (expected, 1)
    assert script != "rank" or said == words  # one line
