"""Which bucket a URL names, and at which server it is asked for."""

from urllib.parse import unquote

import pytest

from atoll_protos.errors import SpecError
from atoll_syncer.storage.buckets import open_bucket
from local.stores.fault_proxy import FaultProxy
from local.stores.opened import object_store
from local.stores.servers import AZURE_ACCOUNT, BUCKET, Place


def test_names_lie_in_the_folder_of_the_url(behind: Place, proxy: FaultProxy) -> None:
    """As everybody else sees it, who knows no prefix."""
    store = object_store(behind)
    store.open()
    store.create("log/1.json", b"x")
    folder = behind.url.split(f"{BUCKET}/", 1)[1]
    account = f"/{AZURE_ACCOUNT}" if behind.url.startswith("az:") else ""
    asked = [unquote(line.split()[1].split("?")[0]) for line in proxy.lines]
    assert f"{account}/{BUCKET}/{folder}/log/1.json" in asked


@pytest.mark.parametrize("url", ["http://bucket/path", "file:///tmp", "://", "S3"])
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="is no bucket; give s3://BUCKET"):
        open_bucket(url)
