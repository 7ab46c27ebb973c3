"""Folders, and the names in them, that survive a power cut."""

import errno
import os
from contextlib import suppress
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, durably. Raises OSError.

    The name of a folder is durable only after an fsync of the folder above it. It is done also for
    a folder that is there: its maker may have been killed before it came to that. Only then may the
    folder above be one that this user cannot open, such as that of a mount.
    """
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            if not each.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            with suppress(PermissionError):
                sync_folder(each.parent)
        else:
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
