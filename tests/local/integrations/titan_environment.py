"""torchtitan in an environment of its own, on top of the one of the tests.

It asks for an older `datasets`, an exact `spmd_types` and Weights & Biases, which would rule what
all other tests run with. So it lies in a folder of the cache, made once a machine, which sees the
packages of this environment behind its own.
"""

import os
import site
import subprocess
import sys
from pathlib import Path

VERSION = "0.3.0"
COMMANDS = {"atoll": "atoll_operator.cli", "atoll-worker": "atoll_worker.__main__"}


def titan_python() -> Path:
    """The interpreter with torchtitan; installs it if it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll"
    folder = cache / "titan-{}-{}.{}".format(VERSION, *sys.version_info)
    python = folder / "bin" / "python"
    done = folder / "done"
    if done.exists() and done.read_text() == sys.prefix:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    lines = (f"import site; site.addsitedir({each!r})\n" for each in site.getsitepackages())
    (own / "tests.pth").write_text("".join(lines))
    for name, module in COMMANDS.items():
        command = python.with_name(name)
        command.write_text(f"#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        command.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, f"torchtitan=={VERSION}"], check=True)
    done.write_text(sys.prefix)
    return python
