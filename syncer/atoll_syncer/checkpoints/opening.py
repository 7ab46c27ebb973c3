"""Opens a place of checkpoints by its URL; obstore is imported only where it is needed."""

from pathlib import Path

from atoll_syncer.checkpoints.places import FILE, FolderPlace, Place


def open_place(endpoint: str, url: str) -> Place:
    """A folder, as file:///FOLDER, or one of a bucket. Nothing is asked yet. Raises SpecError."""
    if url.startswith(f"{FILE}/"):
        return FolderPlace(Path(url.removeprefix(FILE)))
    from atoll_syncer.checkpoints.bucket_place import BucketPlace  # noqa: PLC0415 - see the module

    return BucketPlace(url, endpoint)
