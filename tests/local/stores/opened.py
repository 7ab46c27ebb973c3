"""What the product opens at a place of the tests."""

import os
from collections.abc import Mapping
from unittest import mock

from atoll_syncer.storage.files import FileStore
from atoll_syncer.storage.object_store import Bucket, ObjectStore, open_bucket
from local.stores.servers import Place

AnyStore = FileStore | ObjectStore


def bucket(place: Place, *, environment: Mapping[str, str] | None = None) -> Bucket:
    """With the place's credentials, or others."""
    with mock.patch.dict(os.environ, place.environment if environment is None else environment):
        return open_bucket(place.url, place.endpoint)


def object_store(place: Place, *, environment: Mapping[str, str] | None = None) -> ObjectStore:
    """With the place's credentials, or others; not opened yet."""
    return ObjectStore(bucket(place, environment=environment), place.url)
