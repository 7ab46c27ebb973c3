"""A run begins with a checkpoint, however its model is cut there and here (rule 43)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import Layout, TensorSpec, build_layout
from atoll_protos.job.run_file import Checkpoints, RunFile, Sync
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from atoll_syncer.duties.background import Background, start_threads
from atoll_syncer.duties.checkpointing import Restoring
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Effect,
    EndProcess,
    EndSession,
    FindCheckpoint,
    RestoreSeed,
    SendReply,
)
from atoll_syncer.model.history import History
from atoll_syncer.model.log import FoundCheckpoint, Trained
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.rules.status import status
from atoll_syncer.storage import versions
from atoll_syncer.storage.files import FILE, FileStore
from atoll_syncer.storage.object_store import open_store
from unit.syncer.checkpoint_side import RUN, STATE, Parent, a_place, gathered
from unit.syncer.shard_side import RUN as NEW_RUN
from unit.syncer.shard_side import Side, digest, run_file, side
from unit.syncer.values_side import TENSORS, restore


def found(url: str | Path) -> Checkpoint:
    return restoring.find(str(url), open_store)


def restored(checkpoint: Checkpoint, layout: Layout, sync: Sync) -> list[TensorValues]:
    """The values of all shards of a new run."""
    made = []
    for shard in range(layout.shards):
        values = TensorValues.allocate(layout, shard, sync)
        filled = {
            fragment: {"master": each.master, "momentum": each.momentum}
            for fragment, each in values.slices.items()
        }
        restoring.fill(checkpoint, layout, shard, filled)
        made.append(values)
    return made


# ------------------------------------------------------------ values


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8])
@pytest.mark.parametrize(("shards", "fragments"), [(1, 1), (1, 3), (2, 2), (3, 2), (5, 1)])
def test_master_and_momentum_are_the_same_to_the_bit_however_they_are_cut(
    tmp_path: Path, shards: int, fragments: int, wire: Wire
) -> None:
    parent, place = Parent(tmp_path, sync=Sync(wire_down=wire)), a_place(tmp_path)
    parent.checkpoint(place)
    checkpoint = found(place.url)
    layout = build_layout(TENSORS, fragments, shards)
    values = restored(checkpoint, layout, Sync().with_fragments(fragments))
    for name, wanted in parent.whole.items():
        for had, has in zip(wanted, gathered(layout, values, name), strict=True):
            assert has.tobytes() == had.tobytes()
    for shard in range(shards):
        merges = restoring.merges(checkpoint, layout, shard)
        assert len(merges) == fragments
        assert set(merges) <= {7, 8, 9, 10}
    assert restoring.merges(checkpoint, build_layout(TENSORS, 1, 1), 0) == (7,)


def test_other_types_and_ways_to_merge_are_the_same_model(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    table = [replace(t, dtype="bfloat16", merge="mean") for t in TENSORS]
    layout = build_layout(table, 2, 2)
    assert restoring.difference(found(place.url), layout) == ""
    values = restored(found(place.url), layout, Sync().with_fragments(2))
    by_name = dict(
        zip([t.name for t in layout.tensors], gathered(layout, values, "master"), strict=True)
    )
    for tensor, had in zip(parent.layout.tensors, parent.whole["master"], strict=True):
        assert by_name[tensor.name].tobytes() == had.tobytes()


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    other = [replace(t, shape=(9, 9)) if t.name == "embedding" else t for t in TENSORS]
    more = [*TENSORS, TensorSpec(name="a", shape=(3,), dtype="float32", merge="rda")]
    for table, words in (
        (other, "its tensor embedding has the shape (301, 17), and the model's (9, 9)"),
        (more, "the model's tensor a is not in it"),
        (TENSORS[1:], "its tensor embedding is not in the model"),
    ):
        assert restoring.difference(found(place.url), build_layout(table, 2, 1)) == words


# ------------------------------------------------------------ which one


def test_the_newest_whole_one_of_a_place_or_of_a_run_folder_is_taken(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for step in (20, 40):
        parent.checkpoint(place, step)
    parent.take(place, 0, 60)
    for url in (place.url, f"{FILE}{tmp_path}", f"{place.url}/step-40", f"{place.url}/step-40/"):
        assert found(url).url == f"{place.url}/step-40"
    assert found(f"{place.url}/step-20").url == f"{place.url}/step-20"
    with pytest.raises(RestoreRefusedError, match=r"step-60: it is not whole; give one .*step-40"):
        found(f"{place.url}/step-60")
    with pytest.raises(RestoreRefusedError, match="there is no whole checkpoint"):
        found(f"{FILE}{tmp_path}/nothing")


def test_the_newest_of_two_runs_counts_by_when_it_was_taken(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place, 60, run="former", time=5.0)
    parent.checkpoint(place, 40, time=6.0)
    assert (found(place.url).url, found(place.url).run) == (f"{place.url}/step-40", RUN)


def test_a_part_of_another_run_is_no_part(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place, 40)
    about = bytes(place.read("step-40/checkpoint.json"))
    parent.take(place, 1, 40, run="another")  # its process removes what is not its run's
    with pytest.raises(RestoreRefusedError):
        found(f"{place.url}/step-40")
    place.write("step-40/checkpoint.json", about)
    with pytest.raises(RestoreRefusedError, match="step-40/1: the part is not there"):
        found(f"{place.url}/step-40")


def test_a_flipped_byte_is_named_and_the_checkpoint_before_it(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for step in (20, 40):
        parent.checkpoint(place, step)
    name = parent.histories[1].heads[2].object
    path = place.root / "step-40/1" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()  # a link: the other one stays as it is
    path.write_bytes(data)
    with pytest.raises(RestoreRefusedError) as refused:
        restored(found(place.url), build_layout(TENSORS, 2, 1), Sync().with_fragments(2))
    assert f"step-40/1/{name}: its bytes have changed" in str(refused.value)
    assert str(refused.value).endswith(
        f"begin a new job with the one before it, {place.url}/step-20"
    )
    place.write("step-40/0/part.json", b"{}")
    with pytest.raises(RestoreRefusedError, match="step-40/0: the part is not there, or is dam"):
        found(place.url)


def test_places_in_the_data_are_the_furthest_with_their_own_states(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    checkpoint = found(place.url)
    assert checkpoint.tick == 40  # the lowest
    assert checkpoint.cursors == {"a-0": 101, "a-1": 200}
    assert checkpoint.data_states() == {"a-0": STATE + b"\1"}
    assert checkpoint.trained == {"a-0": Trained(before=16, parent=16)}


# ------------------------------------------------------------ the duty


class Rules:
    """What the duty needs of a shard."""

    def __init__(self) -> None:
        self.state: Any = SimpleNamespace(
            history=History(run=NEW_RUN, epoch=1), term=SimpleNamespace(epoch=1)
        )
        self.found: FoundCheckpoint | None = None
        self.begins_with_a_seed = False
        self.seeded_with: tuple[Any, ...] = ()
        self.refused_with: tuple[Any, ...] = ()

    def checkpoint_found(self, found: FoundCheckpoint) -> list[Effect]:
        self.found = found
        return []

    def no_checkpoint(self) -> list[Effect]:
        self.begins_with_a_seed = True
        return []

    def seeded(self, *given: Any) -> list[Effect]:
        self.seeded_with = given
        return []

    def does_not_fit(self, *given: Any) -> list[Effect]:
        self.refused_with = given
        return []


async def perform(
    rules: Rules,
    store: FileStore,
    effect: FindCheckpoint | RestoreSeed,
    values: TensorValues | None = None,
    run_file: RunFile | None = None,
) -> list[Effect]:
    fed: list[Effect] = []
    metrics = ShardMetrics(CollectorRegistry())
    background = Background(start_threads(), metrics, lambda error: None, lambda full: 0)
    machine: Any = SimpleNamespace(shard=0, store=store, open_place=open_store, run_file=run_file)
    shard: Any = rules
    await Restoring(shard, machine, background, fed.extend).perform(effect, values)
    background.stop()
    return fed


def test_a_shard_writes_version_0_and_the_data_states_into_its_store(tmp_path: Path) -> None:
    parent, place, rules = Parent(tmp_path), a_place(tmp_path), Rules()
    parent.checkpoint(place)
    store = FileStore(tmp_path / "new")
    store.open()
    assert asyncio.run(perform(rules, store, FindCheckpoint(place.url, NEW_RUN))) == []
    assert rules.found is not None
    name = rules.found.data_states["a-0"]
    assert versions.read_data_states(store, name) == rules.found.kept == {"a-0": STATE + b"\1"}
    rules.state.history.checkpoint = rules.found.url
    layout, sync = build_layout(TENSORS, 2, 1), Sync().with_fragments(2)
    values = TensorValues.allocate(layout, 0, sync)
    assert asyncio.run(perform(rules, store, RestoreSeed(), values)) == []
    digests, objects, merges = rules.seeded_with
    history = History()
    history.apply(log.TermBegun(epoch=1, pod="p", instance="i"))
    history.apply(
        log.Seeded(
            tensors=(),
            layout_digest="",
            epoch=1,
            digests=digests,
            objects=objects,
            merges=merges,
        )
    )
    again = TensorValues.allocate(layout, 0, sync)
    assert restore(again, history, store) == {}
    for had, has in zip(
        parent.whole["momentum"], gathered(layout, [again], "momentum"), strict=True
    ):
        assert has.tobytes() == had.tobytes()
    assert [history.heads[n].merges for n in range(2)] == list(merges)


def test_a_wrong_place_ends_the_process_for_good(tmp_path: Path) -> None:
    store, nowhere = FileStore(tmp_path), FindCheckpoint(f"{FILE}{tmp_path}/nothing", NEW_RUN)
    (end,) = asyncio.run(perform(Rules(), store, nowhere))
    assert isinstance(end, EndProcess)
    assert end.code is ExitCode.RESTORE_REFUSED
    assert end.reason.startswith("RestoreRefused: ")
    assert "nothing" in end.reason


def test_a_learner_with_another_model_is_refused_and_the_shard_stays(tmp_path: Path) -> None:
    parent, place, rules = Parent(tmp_path), a_place(tmp_path), Rules()
    parent.checkpoint(place)
    rules.state.history.checkpoint = f"{place.url}/step-40"
    layout = build_layout(TENSORS[1:], 2, 1)
    values = TensorValues.allocate(layout, 0, Sync().with_fragments(2))
    assert asyncio.run(perform(rules, parent.stores[0], RestoreSeed(), values)) == []
    reason = f"RestoreRefused: {place.url}/step-40: its tensor embedding is not in the model"
    assert rules.refused_with == (layout.digest, reason, pb.OTHER_CHECKPOINT)


def test_without_memory_for_the_model_nothing_is_read(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert asyncio.run(perform(Rules(), store, RestoreSeed())) == []


def found_by_a_job(folder: Path, place: FileStore, restore_from: str, uid: str = "") -> Rules:
    """What a registrar finds that has lost everything; `restore_from` is that of its manifest."""
    rules, store = Rules(), FileStore(folder / "new")
    store.open()
    plan = Checkpoints(url=place.url)
    job = replace(JOB, checkpoint=plan, restore_from=restore_from, uid=uid)
    effect = FindCheckpoint(restore_from, NEW_RUN, mine=True)
    asyncio.run(perform(rules, store, effect, run_file=job))
    return rules


JOB = RunFile(job="j", regions=(), steps=9, shards=2)


def test_a_job_that_lost_everything_begins_with_the_newest_checkpoint_of_its_own(
    tmp_path: Path,
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    first, other = f"{place.url}/step-20", f"{place.url}/step-60"
    kinds = ((20, "h", ""), (40, JOB.hash, ""), (60, "h", ""), (80, JOB.hash, first))
    for step, run_hash, restore_from in kinds:
        for each in parent.histories:
            each.run_hash = run_hash
        parent.checkpoint(place, step, restore_from=restore_from)
    # The job that began with `first` has a newer one since; that of `other` has none.
    for restore_from, step in (("", 40), (first, 80), (other, 60)):
        rules = found_by_a_job(tmp_path, place, restore_from)
        assert rules.found is not None
        assert rules.found.url == f"{place.url}/step-{step}"


def test_a_job_that_was_deleted_and_made_again_does_not_go_on_by_itself(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for each in parent.histories:
        each.run_hash = JOB.hash
    parent.checkpoint(place, uid="former")
    assert found_by_a_job(tmp_path, place, "", uid="former").found is not None
    assert found_by_a_job(tmp_path, place, "", uid="new").found is None


def test_a_job_without_a_checkpoint_of_its_own_begins_with_a_seed_and_says_so(
    tmp_path: Path,
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)  # of another one
    with structlog.testing.capture_logs() as lines:
        rules = found_by_a_job(tmp_path, place, "")
    assert rules.found is None
    assert rules.begins_with_a_seed
    assert [each["log_level"] for each in lines] == ["warning"]


# ------------------------------------------------------------ the rules

PLACE = f"{FILE}/checkpoints"
FOUND = FoundCheckpoint(
    url=f"{PLACE}/step-40",
    run=RUN,
    tick=41,
    cursors={"a-0": 101, "a-1": 7},
    trained={"a-0": Trained(before=16, parent=16)},
    data_states={"a-0": "objects/1-states.safetensors"},
    kept={"a-0": STATE},
)
DIGESTS = tuple(digest(fragment, 0) for fragment in range(2))


def restoring_side(**given: Any) -> Side:
    job = replace(run_file(shards=given.pop("shards", 1)), restore_from=PLACE)
    return side(job=job, **given).start()


def test_a_registrar_mints_a_run_that_names_what_the_checkpoint_brings() -> None:
    one = restoring_side()
    (looked,) = one.take(FindCheckpoint)
    assert (looked.place, looked.run) == (PLACE, NEW_RUN)
    assert one.state.history.run == ""
    one.wait(3.0)
    assert one.take(FindCheckpoint) == []
    one.feed(one.shard.checkpoint_found(FOUND))
    history = one.state.history
    (started,) = [each for each in one.entries if isinstance(each, log.RunStarted)]
    assert (started.run, started.parent, started.checkpoint) == (NEW_RUN, RUN, FOUND.url)
    assert (history.tick, history.first_tick, one.state.clock.tick) == (41, 41, 41)
    assert (history.cursors, history.data_states) == (FOUND.cursors, FOUND.data_states)
    assert one.state.sessions.tokens == 16


def test_a_learner_begins_at_the_cursor_and_data_state_of_its_slot() -> None:
    one = restoring_side()
    one.feed(one.shard.checkpoint_found(FOUND))
    for slot in ("a-0", "a-1", "b-0"):
        one.join(slot, starting=True)
    welcomes = [message for _, message in one.sent("welcome")]
    assert [each.tick for each in welcomes] == [41, 41, 41]
    assert [each.cursor for each in welcomes] == [101, 7, 0]
    assert [each.data_state for each in welcomes] == [STATE, b"", b""]


def test_version_0_comes_from_the_checkpoint_and_from_no_learner() -> None:
    one = restoring_side()
    one.feed(one.shard.checkpoint_found(FOUND))
    session = one.join("a-0")
    one.model(session)
    assert one.sent("send_seed") == []
    assert len(one.take(RestoreSeed)) == 1
    one.leave(session)  # only its model was needed
    one.model(one.join("a-1"))
    assert one.take(RestoreSeed) == []
    one.feed(one.shard.seeded(DIGESTS, ("o0", "o1"), (5, 6)))
    history = one.state.history
    assert [each.number for each in history.heads.values()] == [0, 0]
    assert [each.merges for each in history.heads.values()] == [5, 6]
    assert history.due == one.state.rounds.starts == {0: 40, 1: 36}
    assert history.begun == {0}


@pytest.mark.parametrize("gone", [False, True])
def test_who_has_another_model_than_the_checkpoint_is_told_and_the_next_one_is_asked(
    gone: bool,
) -> None:
    one = restoring_side()
    one.feed(one.shard.checkpoint_found(FOUND))
    wrong = build_layout([replace(t, name=f"{t.name}.") for t in TENSORS], 2, 1)
    session = one.join("a-0", layout_digest=wrong.digest)
    one.feed(one.shard.message(session, pb.ToShard(model=wrong.to_model()), one.now))
    assert len(one.take(RestoreSeed)) == 1
    one.model(one.join("a-1"))
    if gone:
        one.leave(session)
    one.feed(one.shard.does_not_fit(wrong.digest, "another tensor", pb.OTHER_CHECKPOINT))
    ends = [] if gone else [(session, pb.OTHER_CHECKPOINT)]
    assert [(each.session, each.end.code) for each in one.take(EndSession)] == ends
    assert status(one.state, one.now).reason == "another tensor"
    assert len(one.take(RestoreSeed)) == 1


def a_job(**length: int | None) -> Side:
    job = replace(run_file(), restore_from=PLACE, **length)  # type: ignore[arg-type]
    return side(job=job).start()


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ({"steps": 41}, "spec.steps: 41 is not above the 41 of"),
        ({"steps": None, "tokens": 16}, "spec.tokens: 16 is not above the 16 of"),
    ],
)
def test_a_run_that_would_end_where_it_begins_is_refused(
    length: dict[str, int | None], words: str
) -> None:
    one = a_job(**length)
    (end,) = one.shard.checkpoint_found(FOUND)
    assert isinstance(end, EndProcess)
    assert end.code is ExitCode.RESTORE_REFUSED
    assert words in end.reason
    assert FOUND.url in end.reason
    longer = {name: value and value + 1 for name, value in length.items()}
    one = a_job(**longer)
    one.feed(one.shard.checkpoint_found(FOUND))
    assert one.state.history.run == NEW_RUN


def test_a_shard_that_comes_to_a_run_that_was_shortened_goes_on() -> None:
    job = replace(run_file(shards=2), restore_from=PLACE, steps=41)
    one = side(job=job, shard=1).start()
    one.feed(one.shard.answered(pb.HelloReply(run=NEW_RUN, checkpoint=FOUND.url), one.now))
    one.feed(one.shard.checkpoint_found(FOUND))
    assert one.state.history.run == NEW_RUN


def test_what_earlier_incarnations_of_the_parent_have_trained_counts_on() -> None:
    one = restoring_side()
    one.feed(one.shard.checkpoint_found(FOUND))
    one.model(one.join("a-0"))
    one.feed(one.shard.seeded(DIGESTS, ("o0", "o1"), (5, 6)))
    (session,) = one.state.sessions.open
    one.report(session, 1, tokens=10)
    assert one.state.sessions.tokens == 26


def test_other_shards_take_the_checkpoint_that_the_registrar_has_found() -> None:
    registrar = restoring_side(shards=2)
    registrar.feed(registrar.shard.checkpoint_found(FOUND))
    hello = pb.HelloRequest(shard=1, run_hash=registrar.job.hash)
    registrar.feed(registrar.shard.registrar_request(7, hello, registrar.now))
    (reply,) = [each.message for each in registrar.take(SendReply)]
    other = restoring_side(shards=2, shard=1)
    other.feed(other.shard.answered(reply, other.now))
    other.feed(other.shard.answered(reply, other.now))
    (looked,) = other.take(FindCheckpoint)
    assert (looked.place, looked.run) == (FOUND.url, NEW_RUN)
    other.feed(other.shard.checkpoint_found(FOUND))
    assert (other.state.history.run, other.state.history.tick) == (NEW_RUN, 41)


def test_a_registrar_without_its_log_carries_the_restored_run_on() -> None:
    one = restoring_side(shards=2, fresh=False)
    hello = pb.HelloRequest(
        shard=1, run_hash=one.job.hash, run="held", checkpoint=FOUND.url, empty=True
    )
    one.feed(one.shard.registrar_request(7, hello, one.now))
    one.wait(31.0)
    assert one.take(FindCheckpoint) == []
    assert (one.state.history.run, one.state.history.checkpoint) == ("held", FOUND.url)
    one.model(one.join("a-0"))
    assert one.sent("send_seed") == []


def test_a_run_that_has_begun_is_not_changed_by_a_place() -> None:
    one = restoring_side(
        entries=(
            log.TermBegun(epoch=1, pod="pod", instance="pod-0"),
            log.RunStarted(run="old", run_hash=run_file().hash, key="k"),
        )
    )
    one.model(one.join("a-0"))
    assert one.take(FindCheckpoint) == []
    assert len(one.sent("send_seed")) == 1


def a_registrar_that_asked(checkpoint: Checkpoints | None, place: str = "") -> Side:
    """Of a job of which nobody has anything any more."""
    job = replace(run_file(), checkpoint=checkpoint, restore_from=place)
    one = side(job=job, fresh=False).start()
    one.wait(31.0)
    return one


@pytest.mark.parametrize("place", ["", PLACE])
def test_before_a_new_run_begins_where_one_may_have_been_its_own_checkpoints_are_looked_at(
    place: str,
) -> None:
    one = a_registrar_that_asked(Checkpoints(url="file:///mine"), place)
    assert one.take(FindCheckpoint) == [FindCheckpoint(place, NEW_RUN, mine=True)]
    assert one.state.history.run == ""
    one.wait(3.0)
    assert one.take(FindCheckpoint) == []  # it is being looked at
    one.feed(one.shard.no_checkpoint())
    assert (one.state.history.run, one.state.history.checkpoint) == (NEW_RUN, "")


def test_a_job_without_a_place_begins_with_a_seed() -> None:
    one = a_registrar_that_asked(None)
    assert one.take(FindCheckpoint) == []
    assert one.state.history.run == NEW_RUN
