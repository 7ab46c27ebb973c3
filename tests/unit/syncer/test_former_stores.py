"""Stores that the release before this one has written, byte for byte, are carried on (rule 2).

Each file of `stores` is the run.json and the folder of the one shard of a run of some 12 ticks that
commit b40570c trained, as it was before the end: log, objects, and under an int8 wire a snapshot of
the log. `bn` and `bn8` have batch normalisation, with 2 fragments and with a fragment for each
tensor; their averaged buffers lay and travelled in another way.
"""

import zipfile
from pathlib import Path

import pytest

from atoll_protos.run import RunFile
from atoll_syncer.model.history import History
from atoll_syncer.model.state import layout_of
from atoll_syncer.numbers.values import Values
from atoll_syncer.rules.runs import OTHER_BUFFERS, of_another_job
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import FileStore
from unit.syncer.shard_side import side

STORES = Path(__file__).with_name("stores")


def opened(name: str, folder: Path) -> tuple[FileStore, History, RunFile]:
    """The store, what its log says, and the run file."""
    with zipfile.ZipFile(STORES / f"{name}.zip") as file:
        file.extractall(folder)
    store = FileStore(folder / "commits" / "0")
    store.open()
    history = Journal(store, lambda: 0.0).read()
    run_file = RunFile.from_json((folder / "run.json").read_text(encoding="utf-8"))
    return store, history, run_file


@pytest.mark.parametrize("name", ["f32", "bf16", "int8"])
def test_a_run_of_the_release_before_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    store, history, run_file = opened(name, tmp_path)
    assert of_another_job(history, run_file) == ""
    assert not history.incomplete
    assert {each.number for each in history.heads.values()} == {1}
    assert history.cursors["a-0"] > 0
    layout = layout_of(history, run_file)
    values = Values.allocate(layout, 0, run_file.sync.with_fragments(layout.fragments))
    assert values.restore(history, store) == {}
    assert {n: base.digest for n, base in values.bases().items()} == {
        n: head.digest for n, head in history.heads.items()
    }


def test_a_learner_of_such_a_run_gets_its_place_in_the_data_and_its_next_incarnation(
    tmp_path: Path,
) -> None:
    _, history, run_file = opened("bf16", tmp_path)
    one = side(history=history, job=run_file).start()
    one.join("a-0", layout_digest=history.layout_digest, starting=True)
    welcome = one.sent("welcome")[0][1]
    assert welcome.run == history.run
    assert welcome.incarnation == 2
    assert welcome.cursor == history.cursors["a-0"]
    assert not welcome.HasField("data_state")


@pytest.mark.parametrize("name", ["bn", "bn8"])
def test_a_run_whose_averaged_buffers_lay_in_another_way_is_refused_with_the_remedy(
    name: str, tmp_path: Path
) -> None:
    """Else its buffers would be taken for lost, and with them the training."""
    _, history, run_file = opened(name, tmp_path)
    assert of_another_job(history, run_file) == OTHER_BUFFERS
