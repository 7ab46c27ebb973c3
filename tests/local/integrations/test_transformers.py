"""transformers' Trainer in this process, alone or as the learner of a real shard."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from atoll import SpecError
from atoll_integrations.transformers import AtollCallback, check_parallel
from local.integrations.conftest import Alone
from local.integrations.numbers_data import (
    BATCH,
    RATE,
    Line,
    Numbers,
    Stream,
    check_two_starts,
    continues,
    steps_beyond,
)
from local.one_shard import SLOT, OneShard, one_shard

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of their own parts
ACCUMULATE, STEPS, STOP_AFTER = 4, 36, 18  # ten batches an epoch: groups of 4, 4 and 2
STEP_SECONDS = 0.02  # what a step takes at least: merges happen meanwhile


class Watch(TrainerCallback):  # type: ignore[misc]
    """What is so at every step; stops after STOP_AFTER, once `shard` has merged some of them."""

    def __init__(self, atoll_callback: AtollCallback, shard: OneShard | None = None) -> None:
        self.callback, self.shard = atoll_callback, shard
        self.cursor = -1
        self.rates: list[tuple[int, float]] = []  # tick, learning rate
        self.evaluations: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.callback.learner is not None
        self.cursor = self.callback.learner.cursor

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        assert self.callback.learner is not None
        time.sleep(STEP_SECONDS)
        self.rates.append((self.callback.learner.tick, optimizer.param_groups[0]["lr"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.shard is not None and state.global_step >= STOP_AFTER and self.shard.has_merged():
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self.evaluations.append(metrics["eval_loss"])


def trainer_of(
    folder: Path, data: Any = None, shard: OneShard | None = None, **arguments: Any
) -> tuple[Any, Watch]:
    """A Trainer of a Line, with its watch."""
    callback = AtollCallback()
    watch = Watch(callback, shard)
    defaults = {
        "max_steps": 7,  # the job's length is another
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "learning_rate": RATE,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }
    trainer = Trainer(
        model=Line(),
        args=TrainingArguments(output_dir=str(folder / "output"), **{**defaults, **arguments}),
        train_dataset=Numbers() if data is None else data,
        eval_dataset=Numbers(),
        callbacks=[callback, watch],
    )
    return trainer, watch


def test_a_trainer_that_is_started_again_goes_on_with_its_next_batch(
    tmp_path: Path, alone: Alone
) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        first, _ = trainer_of(tmp_path, shard=shard)
        first.train()
        second, watch = trainer_of(tmp_path)
        second.train()
    alone(steps_beyond(len(first.model.seen), watch.cursor + len(second.model.seen)))
    whole, _ = trainer_of(tmp_path)
    whole.train()

    ahead = 2 * BATCH  # accelerate reads a batch ahead in each epoch; the rest is not read again
    epochs = len(second.model.seen) // 10 + 2
    assert len(second.train_dataset.read) <= len(second.model.seen) * BATCH + ahead * epochs
    assert second.train_dataset.read[0] == second.model.seen[0][0]
    seen = (whole.model.seen, first.model.seen, second.model.seen)
    check_two_starts(*seen, watch.cursor, watch.rates, STEPS)
    full, last = ACCUMULATE * BATCH, 2 * BATCH
    assert {line["tokens"] for line in shard.steps} == {full, last}
    losses = [line["loss"] for line in shard.steps[:3]]
    assert losses == pytest.approx(first.model.losses_of_steps(ACCUMULATE, ACCUMULATE, 2))
    assert shard.commits


def test_a_stream_without_a_length_is_read_on_from_its_place_and_has_no_end(
    tmp_path: Path,
) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        first, _ = trainer_of(tmp_path, Stream(), shard)
        first.train()
        second, watch = trainer_of(tmp_path, Stream())
        second.train()
    epoch = [tuple(range(start, start + BATCH)) for start in range(0, 40, BATCH)]
    whole = 1000 * epoch
    assert len(first.model.seen) >= STOP_AFTER * ACCUMULATE
    assert continues(first.model.seen, 0, whole)
    assert 0 < watch.cursor <= len(first.model.seen)
    assert continues(second.model.seen, watch.cursor, whole)
    assert len(second.model.seen) > len(epoch)


def test_it_logs_evaluates_and_saves_as_it_does_at_a_last_step(
    tmp_path: Path, alone: Alone
) -> None:
    alone(10)
    trainer, watch = trainer_of(
        tmp_path,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        logging_steps=5,
    )
    trainer.train()
    assert trainer.state.global_step == 10
    assert len(watch.evaluations) == 3  # steps 4 and 8, and the last
    assert trainer.evaluate()["eval_loss"] == watch.evaluations[-1]
    folders = {each.name for each in (tmp_path / "output").glob("checkpoint-*")}
    assert folders == {"checkpoint-4", "checkpoint-8", "checkpoint-10"}
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(logged) == 2
    assert trainer.args.max_steps == 10


def test_a_share_of_the_steps_is_of_the_jobs_steps(tmp_path: Path, alone: Alone) -> None:
    alone(20)
    trainer, watch = trainer_of(tmp_path, warmup_steps=0.5, logging_steps=0.25)
    trainer.train()
    assert [line["step"] for line in trainer.state.log_history if "loss" in line] == [5, 10, 15, 20]
    tick, rate = max(watch.rates, key=lambda pair: pair[1])
    assert tick == 10
    assert rate == pytest.approx(RATE)


@pytest.mark.parametrize("saved", [5, 6])  # within an epoch of 3 steps, and at its end
def test_a_checkpoint_gives_neither_rates_nor_an_end_nor_a_place_in_the_data(
    saved: int, tmp_path: Path, alone: Alone
) -> None:
    alone(8)
    first, _ = trainer_of(tmp_path, save_strategy="steps", save_steps=saved)
    first.train()
    second, watch = trainer_of(tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "output" / f"checkpoint-{saved}"))
    assert [tick for tick, _ in watch.rates] == list(range(8))
    assert [rate for _, rate in watch.rates] == pytest.approx(
        [RATE * (1 - n / 8) for n in range(8)]
    )
    assert second.model.seen == first.model.seen


def test_a_slot_that_is_not_the_first_saves_in_its_own_folder_and_no_checkpoints(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(4)
    monkeypatch.setattr("atoll_worker.job.Job.slots", ("another-0", "alone-0"))
    trainer, _ = trainer_of(tmp_path, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "output" / "alone-0" / "model.safetensors").exists()
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_early_stopping_is_left_out_with_a_warning(tmp_path: Path, alone: Alone) -> None:
    alone(6)
    trainer, _ = trainer_of(
        tmp_path, eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_loss"
    )
    # no loss is better by so much, so it would stop at the second evaluation
    trainer.add_callback(EarlyStoppingCallback(1, early_stopping_threshold=1e9))
    with pytest.warns(UserWarning, match="EarlyStoppingCallback is left out"):
        trainer.train()
    assert trainer.state.global_step == 6


def test_one_that_was_added_to_a_finished_trainer_says_how_it_is_given(tmp_path: Path) -> None:
    trainer = Trainer(
        model=Line(),
        args=TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True),
        train_dataset=Numbers(),
    )
    trainer.add_callback(AtollCallback())
    with pytest.raises(SpecError, match="when the Trainer is made"):
        trainer.train()


def test_an_exception_in_a_trainer_leaves_the_job_with_its_reason(tmp_path: Path) -> None:
    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ValueError("boom in step 1")

    with one_shard(tmp_path, steps=STEPS) as shard:
        trainer, watch = trainer_of(tmp_path)
        trainer.add_callback(Fails())
        with pytest.raises(ValueError, match="boom"):
            trainer.train()
        assert watch.callback.learner is None
        again, _ = trainer_of(tmp_path)  # another Learner may be opened
        again.train()
    assert "boom in step 1" in (shard.folder / "learners" / f"{SLOT}.jsonl").read_text()


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        ("DEEPSPEED", {}, "DEEPSPEED"),
        ("MULTI_GPU", {"tp_size": 2, "cp_size": 1, "sp_size": 1}, "tp_size=2"),
    ],
)
def test_ranks_that_have_no_batches_of_their_own_are_refused(
    kind: str, sizes: dict[str, int], said: str
) -> None:
    config = SimpleNamespace(**sizes)
    accelerator = SimpleNamespace(
        num_processes=1, distributed_type=SimpleNamespace(value=kind), parallelism_config=config
    )
    with pytest.raises(SpecError, match=f"does not train with {said}; use Distributed"):
        check_parallel(accelerator)
