"""A file system that loses what was not synced: every state that a power cut may leave.

POSIX promises little. After a power cut a file has the bytes of its last fsync, or newer ones; a
folder has the names of its last fsync, with or without each later change. So a name may be there
without its content, and content without its name. `PowerCut` looks at the real files of a test,
notes what each fsync makes durable, and builds after every step the states that may be left:

    none      of what was not synced is there
    names     all names are there, and only synced content
    contents  all content is there, and only synced names
    all       of it: the process was killed, and the power stayed
    mixed     each name and each content by chance
"""

import fnmatch
import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Names = dict[str, tuple[int, bool]]  # name: inode, and whether it is a folder
State = dict[Path, bytes | None]  # content of each file; None: it is a folder
CHANGES = ("fsync", "link", "rename", "unlink", "mkdir")
MIXED = 4


class PowerCut:
    """What is durable below `root`, which is durable itself; `check` looks at a state's folder.

    `ignored` is a part of paths whose fsync does nothing: a bug that the check must find.
    """

    def __init__(self, root: Path, check: Callable[[Path], None], ignored: str = "") -> None:
        self.root, self.check, self.ignored = root, check, ignored
        self.names: dict[int, Names] = {root.stat().st_ino: {}}  # of folders, at their last fsync
        self.contents: dict[int, bytes] = {}  # of files, at their last fsync
        self.looks = 0
        self._looking = False
        self._held: list[int] = []  # so that no inode of these is used again
        self._dice = random.Random(1)

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Look after each change of the file system."""
        for name in CHANGES:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        try:
            yield
        finally:
            patch.undo()
            for handle in self._held:
                os.close(handle)

    def _watched(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._looking:
                return change(*arguments, **named)
            result = None if name == "fsync" else change(*arguments, **named)
            if name == "fsync" and not self._ignores(arguments[0]):
                self._synced(arguments[0])
            self.look()
            return result

        return watched

    def _ignores(self, handle: int) -> bool:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        return fnmatch.fnmatch(str(path.relative_to(self.root)), self.ignored)

    def _synced(self, handle: int) -> None:
        found, path = os.fstat(handle), Path(f"/proc/self/fd/{handle}")
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = names_in(path.resolve())
        else:
            self.contents[found.st_ino] = path.read_bytes()
        self._held.append(os.dup(handle))

    def look(self) -> None:
        """Check every state that a power cut now may leave."""
        self.looks += 1
        self._looking = True
        never, always = (lambda: False), (lambda: True)
        choices = [(never, never), (always, never), (never, always), (always, always)]
        seen: list[State] = []
        for newer_names, newer_content in [*choices, *[(self._toss, self._toss)] * MIXED]:
            state: State = {}
            inode = self.root.stat().st_ino
            self._build(self.root, inode, Path(), state, newer_names, newer_content)
            if state in seen:
                continue
            seen.append(state)
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), state)
                self.check(Path(folder))
        self._looking = False

    def _toss(self) -> bool:
        return self._dice.random() < 0.5

    def _build(
        self,
        real: Path,
        inode: int,
        below: Path,
        state: State,
        newer_names: Callable[[], bool],
        newer_content: Callable[[], bool],
    ) -> None:
        """Add a folder to a state; both functions say whether the next thing is new, not synced."""
        durable = self.names.get(inode, {})
        now = names_in(real) if real.is_dir() else {}
        for name in sorted({*durable, *now}):
            view = now if newer_names() else durable
            if name not in view:
                continue
            child, is_folder = view[name]
            if is_folder:
                state[below / name] = None
                self._build(real / name, child, below / name, state, newer_names, newer_content)
                continue
            data = self.contents.get(child, b"")
            if now.get(name, (0, False))[0] == child and newer_content():
                data = (real / name).read_bytes()
            state[below / name] = data


def write(folder: Path, state: State) -> None:
    """Make the files and folders of a state."""
    for path, data in state.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def names_in(folder: Path) -> Names:
    """The names of a folder as they are now."""
    with os.scandir(folder) as found:
        return {each.name: (each.inode(), each.is_dir()) for each in found}
