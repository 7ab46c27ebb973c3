import hashlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from bytegpt import data
from bytegpt.data import Batches


def many_files(folder: Path, count: int = 100) -> Path:
    for number in range(count):
        content = hashlib.sha256(str(number).encode()).hexdigest() * (1 + number % 5)
        (folder / f"{number:03d}.txt").write_text(content)
    return folder


def batches(seed: int = 0, slot: str = "a-0", length: int = 5000) -> Batches:
    text = torch.arange(length).remainder(251).to(torch.uint8)
    return Batches(text=text, seed=seed, slot=slot, batch=4, context=16)


@given(cursor=st.integers(0, 10**6), seed=st.integers(0, 5), slot=st.sampled_from(["a-0", "b-1"]))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_a_function_of_seed_slot_and_cursor(cursor: int, seed: int, slot: str) -> None:
    fresh = batches(seed, slot).at(cursor)
    used = batches(seed, slot)
    for other in (0, cursor + 500, cursor):
        again = used.at(other)
    assert torch.equal(fresh, again)
    assert fresh.shape == (4, 17)
    assert fresh.dtype == torch.int64


def test_one_pass_shows_every_window_once_and_the_next_another_order() -> None:
    wanted = batches()
    starts = [int(wanted.start(position)) for position in range(2 * wanted.windows)]
    first, second = starts[: wanted.windows], starts[wanted.windows :]
    for each in (first, second):
        assert sorted(each) == list(range(min(each), min(each) + 16 * wanted.windows, 16))
        assert max(each) + 17 <= len(wanted.text)
    assert first != second
    assert len(wanted.orders) <= 2  # old ones are not kept
    batch = wanted.at(0)
    assert not torch.equal(batch, batches(seed=1).at(0))
    assert not torch.equal(batch, batches(slot="a-1").at(0))


def test_the_shards_and_the_held_out_part_share_nothing_and_miss_nothing(tmp_path: Path) -> None:
    text = data.read([str(many_files(tmp_path))])
    shards = [text.shard(index, 3) for index in range(3)]
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(len(each) for each in shards) + len(text.heldout()) == total
    held = {digest for digest in text.documents if data.held_out(digest)}
    assert 0 < len(held) < 20
    (tmp_path / "more.txt").write_text("more")  # a new neighbour moves no file
    after = data.read([f"{tmp_path}/*.txt"])
    assert held <= {digest for digest in after.documents if data.held_out(digest)}


def test_a_single_file_is_cut_so_that_all_parts_get_some(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes(os.urandom(3_000_000))
    text = data.read([str(path)])
    assert len(text.heldout()) > 0
    assert min(len(text.shard(index, 4)) for index in range(4)) > 500_000


def test_the_default_is_the_standard_library_without_its_tests() -> None:
    paths = data.standard_library()
    assert any(path.name == "argparse.py" for path in paths)
    assert not any("test" in path.parts or "site-packages" in path.parts for path in paths)


def test_files_that_cannot_be_had_are_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.symlink_to(path)
    with pytest.raises(SpecError, match=r"a\.txt cannot be read: .*; make it readable"):
        data.content_of(path)
    with pytest.raises(SpecError, match=r"nothing-\* matches no file; correct"):
        data.read([str(tmp_path / "nothing-*")])


def test_too_little_data_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("x" * 20)
    text = data.read([str(tmp_path)])
    with pytest.raises(SpecError, match="too little"):
        text.shard(5, 8)
    with pytest.raises(SpecError, match="20 bytes are too few for a context of 16"):
        batches(length=20)
    with pytest.raises(SpecError, match="fewer than one context"):
        data.windows(torch.zeros(10, dtype=torch.uint8), context=16, byte_count_max=100)


def test_evaluation_windows_are_spread_over_the_text_and_never_too_many() -> None:
    text = torch.arange(250).to(torch.uint8)
    found = data.windows(text, context=10, byte_count_max=40)
    assert found[:, 0].tolist() == [0, 60, 120, 180]
    assert found.shape == (4, 11)
    assert data.windows(text, context=10, byte_count_max=10**6).shape == (24, 11)
