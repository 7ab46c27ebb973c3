"""The environment of a learner or an evaluator of the example model."""

from pathlib import Path

import pytest

from unit.worker.fake_transport import ENDPOINTS, RUN_FILE


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = tmp_path / "text.bin"
    text.write_bytes(bytes(range(97)) * 10_000)
    run_file = tmp_path / "run.json"
    run_file.write_text(RUN_FILE.to_json())
    monkeypatch.setenv("ATOLL_RUN_FILE", str(run_file))
    monkeypatch.setenv("ATOLL_ENDPOINTS", ",".join(ENDPOINTS))
    monkeypatch.setenv("ATOLL_SLOT", "here-0")
    return str(text)
