"""What a lab changes on the machine as a whole, written down first and undone at the end."""

import json
from collections.abc import Sequence
from pathlib import Path

from cluster.lab.layout import cache_folder

SYSCTLS = (  # the kubelet sets the first three; the last must do for many nodes
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "fs/inotify/max_user_instances",
)
INOTIFY_INSTANCES = 1024


def _record() -> Path:
    return cache_folder() / "machine.json"


def prepare(folders: Sequence[str]) -> None:
    """Write down the machine's settings, then change them and make the folders to mount on."""
    record = _record()
    if not record.exists():
        sysctls = {name: Path("/proc/sys", name).read_text().strip() for name in SYSCTLS}
        missing = [
            str(part)
            for folder in folders
            for part in (*reversed(Path(folder).parents), Path(folder))
            if not part.exists()
        ]
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps({"sysctls": sysctls, "made": missing}))
        partial.rename(record)
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
    instances = Path("/proc/sys", SYSCTLS[-1])
    instances.write_text(str(max(int(instances.read_text()), INOTIFY_INSTANCES)))


def restore() -> None:
    """Put everything back; nothing to do is fine."""
    record = _record()
    if not record.exists():
        return
    known = json.loads(record.read_text())
    for name, value in known["sysctls"].items():
        Path("/proc/sys", name).write_text(value)
    for folder in reversed(known["made"]):
        try:
            Path(folder).rmdir()
        except OSError:  # gone already, or someone else uses it now
            continue
    record.unlink()
