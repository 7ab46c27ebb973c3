"""The libraries are imported by their own module alone."""

import subprocess
import sys

LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning", "peft")

NONE_IS_IMPORTED = f"""
import sys, atoll_integrations.trainers
assert not [name for name in {LIBRARIES} if name in sys.modules]
"""

WITHOUT_THEM = f"""
sys.modules.update(dict.fromkeys({LIBRARIES}))  # as if they were not installed
for module in ("transformers", "lightning"):
    try:
        __import__("atoll_integrations." + module)
    except ImportError as error:
        assert f"pip install -e '.[local,{{module}}]'" in str(error), error
    else:
        raise AssertionError(module)
"""


def test_a_library_is_imported_only_when_asked_for_and_named_when_it_is_not_installed() -> None:
    code = NONE_IS_IMPORTED + WITHOUT_THEM
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
