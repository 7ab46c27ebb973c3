"""Buckets of S3, Google Cloud Storage and Azure, by obstore: how they are opened, how they fail.

Credentials are the process's: its environment, or what the cloud gives a pod (workload identity).
A refusal of them is trouble like any other, never a loss: a role may reach its pod minutes late.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from obstore import exceptions
from obstore.store import from_url

from atoll_protos.errors import SpecError
from atoll_syncer.storage.store import StoreMissing, StoreUnavailable

ENDPOINT: Final = {"s3": "endpoint", "az": "endpoint", "gs": "base_url"}  # by scheme, for obstore
ALLOW_HTTP: Final = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP"}
RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
TIMES: Final = {"connect_timeout": timedelta(seconds=3), "timeout": timedelta(seconds=60)}
PART_BYTES: Final = 64 << 20  # of an object that is sent or read in parts
PARTS_AT_ONCE: Final = 4
PIECE_BYTES: Final = 16 << 20  # of a file that is sent, PARTS_AT_ONCE of them, or read
REFUSALS: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
REFUSED_LIST: Final = re.compile("status code: 40[13] ")  # obstore has no class of its own for it
CODE: Final = re.compile(r": <.*?<Code>(\w+)</Code>.*", re.DOTALL)  # in an answer's XML
DURATION: Final = re.compile(r" in [\d.]+(ns|µs|ms|s)\b")
AWAY: Final = "check the bucket, the address and the network"
REFUSED: Final = (
    "give the shards' pods credentials that may read, write, list and delete there, and check the"
    " clock, which may be wrong by 15 minutes at most"
)

Bucket = Any  # obstore has one class for each provider, without a common public type


def is_url(place: str) -> bool:
    """Whether a place is a bucket's, and not a folder."""
    return "://" in place


def open_bucket(url: str, endpoint: str = "") -> Bucket:
    """The bucket of `url` (s3://, gs:// or az://ACCOUNT/), whose path goes before every name.

    `endpoint` is where the provider answers; empty: at its usual address. Nothing is asked yet.
    Raises SpecError.
    """
    scheme, host, path, *_ = urlsplit(url)
    if scheme not in ENDPOINT or not host:
        raise SpecError(
            url, "is no bucket", "give s3://BUCKET, gs://BUCKET, az://ACCOUNT/CONTAINER"
        )
    config = {ENDPOINT[scheme]: endpoint} if endpoint else {}
    address = url
    if scheme == "az":
        config["account_name"], address = host, f"az:/{path}"
    # obstore does not read this variable where it is given options of its own
    plain = os.environ.get(ALLOW_HTTP[scheme], "").lower() == "true"
    options: dict[str, Any] = {
        "config": config,
        "client_options": {**TIMES, "allow_http": plain or endpoint.startswith("http://")},
        "retry_config": RETRIES,
    }
    try:
        return from_url(address, **options)
    except (exceptions.BaseError, ValueError) as error:
        raise SpecError(url, _reason(error), "correct the URL, or its credentials") from error


@contextmanager
def bucket_errors(where: str) -> Iterator[None]:
    """Turn what obstore raises into a StoreError. A name that is missing: StoreMissing."""
    try:
        yield
    except FileNotFoundError as error:
        remedy = "nothing to do if it was collected; else restore the bucket"
        raise StoreMissing(where, "there is no such name", remedy) from error
    except (exceptions.BaseError, OSError) as error:
        reason = _reason(error)
        refused = isinstance(error, REFUSALS) or REFUSED_LIST.search(reason)
        raise StoreUnavailable(where, reason, REFUSED if refused else AWAY) from error


def _reason(error: BaseException) -> str:
    """Its first line, with the code that the server gave: the same trouble is the same text."""
    lines = DURATION.sub("", CODE.sub(r": \1", str(error).strip())).splitlines()
    return lines[0] if lines else type(error).__name__
