"""A mistake that is seen when the processes beside the ranks have been started ends them all."""

import json
from pathlib import Path

from local.ranks.jobs import run_script

NOTHING: list[object] = [None, 0, []]  # no process, no shared memory, no temporary file or folder
WANTED = {
    "a_file_that_the_head_cannot_read": ("export_files: rank 0: no-such-tokenizer.json", "give"),
    "a_frozen_tensor_that_one_rank_has_cut": ("model.frozen: is a DTensor on only one", "shard"),
}


def test_what_is_refused_late_is_refused_on_every_rank_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    torch_writes = str(tmp_path / "of-torch")
    run_script("leftovers_script.py", tmp_path, TORCHINDUCTOR_CACHE_DIR=torch_writes)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for name, (problem, remedy) in WANTED.items():
        (refusal,) = {rank[name]["refusal"] for rank in ranks}
        assert refusal.startswith(problem)
        assert remedy in refusal.partition(";")[2]
        assert [rank[name]["left"] for rank in ranks] == [NOTHING] * len(ranks), name
