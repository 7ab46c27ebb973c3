"""What the operator has noted is spoilt by hand, in every way: no pass dies of what it reads."""

import copy
import json
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.edges.api import LEASES, NODES, path
from atoll_operator.kube.names import RENDERED, RUN_FILE, SLOTS_FILE, Annotation, accepted_name
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.observation import Replaced
from atoll_operator.kube.plan.accepted import SPEC
from atoll_operator.kube.reconcile import READ_SECONDS_MAX
from atoll_protos.names import Label
from unit.kube.world import KEY, World, lost_learner

NASTY = (
    "", " ", "{", "[", "null", "true", "3", "-1", '"x"', "[]", "NaN", "1e999", "9" * 5000,
    "[" * 5000, '{"0": 3}', '{"0": [1, "u", 2, 3, 4]}', '{"0": [true, "u", 0, 0]}',
    '{"x": [1, "u", 0, 0]}', '{"²": [1, "u", 0, 0]}', '{"0": ["1", 7, null, {}]}', '{"n1": "x"}',
    '{"n1": 1e999}', '{"no node ": 7}', '{"folder": 1, "job": [], "hash": null, "former": 7}',
    '{"folder": "f", "job": "j", "hash": "h", "former": [3, {"folder": "g"}]}', '{"regions": 3}',
    '{"regions": [{"learners": 1}]}', '{"suspend": 7, "regions": {}}', "2026-13-45T99:99:99Z",
)  # fmt: skip
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "n1", "regions", "name", "sum"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TEXTS = st.sampled_from(NASTY) | st.text(max_size=20) | JSON.map(json.dumps)
ANNOTATIONS = tuple(v for k, v in vars(Annotation).items() if k.isupper())
LABELS = (Label.ROLE, Label.REGION, Label.SHARD, Label.SLOT, Label.JOB_UID,
          "apps.kubernetes.io/pod-index")  # fmt: skip
DATA = (SPEC, RENDERED, RUN_FILE, SLOTS_FILE)
TIMES = ("startTime", "completionTime")
VERSIONS = count(1000, 1000)
Draw = Callable[[Any], Any]


@cache
def well() -> World:
    """A job whose learner has been moved from a lost node, so that there are notes of all kinds."""
    world = lost_learner()
    assert world.server.job is not None
    world.server.job["spec"]["syncer"]["storage"] = {"type": "PersistentVolumeClaim"}
    for _ in range(4):
        world.run()
    return world


def as_well() -> World:
    """Another operator that finds the same."""
    known, world = well(), World()
    world.server.children = copy.deepcopy(known.server.children)
    world.server.job = copy.deepcopy(known.server.job)
    assert world.server.job is not None
    world.spec = copy.deepcopy(world.server.job["spec"])
    world.shards.replies = known.shards.replies
    world.server.version = next(VERSIONS)  # what is kept by version is of another object
    for name, ready in (("n1", "False"), ("n2", "True"), ("n3", "True")):
        conditions = [{"type": "Ready", "status": ready}]
        raw = {"metadata": {"name": name}, "status": {"conditions": conditions}}
        world.nodes.take(NODES, "ADDED", raw)
    return world


def spoil(draw: Draw, world: World) -> None:
    """One spoilt text, number or status."""
    server = world.server
    assert server.job is not None
    where = draw(st.sampled_from(["annotation", "label", "data", "status", "job", "lease"]))
    child = server.children[draw(st.sampled_from(sorted(server.children)))]
    inside = [child["metadata"]]
    if "template" in (child.get("spec") or {}):
        inside.append(child["spec"]["template"]["metadata"])
    if where == "annotation":
        metadata = draw(st.sampled_from(inside))
        found = {**(metadata.get("annotations") or {}), draw(st.sampled_from(ANNOTATIONS)): ""}
        metadata["annotations"] = {
            k: v if v and draw(st.booleans()) else draw(TEXTS) for k, v in found.items()
        }
    elif where == "label":
        labels = draw(st.sampled_from(inside)).setdefault("labels", {})
        labels[draw(st.sampled_from(LABELS))] = draw(st.text("a0-9²", max_size=63))
    elif where == "data":
        name = draw(st.sampled_from([accepted_name("tiny"), "tiny-run-x", "tiny-slots"]))
        maps = [k for k in server.children if "/configmaps/" in k and name[:-1] in k]
        server.children[draw(st.sampled_from(sorted(maps)))]["data"] = draw(
            st.none() | st.dictionaries(st.sampled_from(DATA), TEXTS)
        )
    elif where == "job":
        name = draw(st.sampled_from([Annotation.RETRY, Annotation.RELEASE_HOLD]))
        server.job["metadata"].setdefault("annotations", {})[name] = draw(TEXTS)
    elif where == "status":
        spoil_status(draw, server.job)
    else:
        spec = {"renewTime": draw(st.none() | st.text(max_size=9))}
        spec["leaseDurationSeconds"] = draw(st.none() | st.integers(-(2**31), 2**31 - 1))
        name = draw(st.sampled_from(["n1", "n2", "n9", ""]))
        raw = {"metadata": {"name": name}, "spec": draw(st.just({}) | st.just(spec))}
        world.nodes.take(LEASES, "ADDED", raw)


def spoil_status(draw: Draw, job: dict[str, Any]) -> None:
    status = job["status"]
    conditions = status["conditions"] if isinstance(status["conditions"], list) else []
    inside = [e for e in (*conditions, status.get("syncer")) if isinstance(e, dict) and e]
    each = draw(st.sampled_from([status, status, *inside]))
    more = (*TIMES, "failure", "exportURL") if each is status else ()
    each[draw(st.sampled_from([*sorted(each), *more]))] = draw(JSON | TEXTS)
    if draw(st.booleans()):
        ended = {"type": draw(st.sampled_from(["Failed", "Complete"])), "status": "True"}
        conditions.append({**ended, "reason": "R", "observedGeneration": 1})


def survives(draw: Draw, most: int) -> None:
    world = as_well()
    for _ in range(draw(st.integers(1, most))):
        spoil(draw, world)
    world.run()
    world.run()


FAST = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@FAST
@given(st.data())
def test_a_pass_never_dies_of_what_was_spoilt(data: st.DataObject) -> None:
    survives(data.draw, most=12)


@settings(FAST, max_examples=600)
@given(TEXTS, JSON)
def test_whatever_a_note_holds_it_is_read_as_what_could_have_been_written(
    text: str, value: object
) -> None:
    moved, nodes = objects.replaced(text), objects.suspects(text)
    assert objects.replaced(objects.of_replaced(moved)) == moved
    assert objects.suspects(objects.of_suspects(nodes)) == nodes
    maps = [{"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {RUN_FILE: text}}]
    assert all(objects.document(each) for each in objects.run_files(maps).values())
    known = {"type": "Ready", "status": "True", "reason": "Training"}
    raw: Any = {"startTime": text, "syncer": value, "run": "r", "conditions": [value, known]}
    status = Status.read(raw)
    assert status.run == "r"
    assert [each.type for each in status.conditions or []] == ["Ready"]


@pytest.mark.parametrize("text", ["{", '{"0": 3}', '{"no node ": 7}', "null"])
@pytest.mark.parametrize("name", [Annotation.REPLACED, Annotation.SUSPECTS])
def test_a_note_that_was_spoilt_is_written_again_and_told_once(name: str, text: str) -> None:
    world = as_well()
    world.run()
    where = path("StatefulSet", "demo", "tiny-us-east")
    world.server.children[where]["metadata"]["annotations"][name] = text
    wrote = world.run()
    assert "apply StatefulSet tiny-us-east" in wrote
    assert wrote.count("event ChildReverted") == 1
    annotations = world.server.children[where]["metadata"]["annotations"]
    assert annotations[name] == "{}"
    assert "event ChildReverted" not in world.run()


def test_what_is_left_of_a_note_counts() -> None:
    text = '{"0": [1, "u", 5, 1], "1": [1, "u"], "x": 3, "2": [true, "u", 5, 1]}'
    assert objects.replaced(text) == {0: Replaced(count=1, uid="u", since=5, recent=1)}
    assert objects.suspects('{"n1": 7, "n2": "7", "a b": 7, "n3": -1}') == {"n1": 7}


def test_a_failure_of_the_reading_is_said_in_every_condition_once_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = as_well()
    world.run()

    def broken(*_: object) -> None:
        raise TypeError("of ours")

    monkeypatch.setattr(type(world.nodes), "usable", broken)
    with pytest.raises(TypeError):
        world.run()
    assert world.said("SyncerReady")["reason"] != "NotRead"
    memory = world.reconciler.memories[KEY]
    memory.read_at -= READ_SECONDS_MAX
    with pytest.raises(TypeError):  # counted, and tried again
        world.run()
    said = world.said("SyncerReady")
    assert (said["status"], said["reason"]) == ("Unknown", "NotRead")
    assert "TypeError: of ours" in said["message"]
    assert world.metric("atoll_operator_pass_failures_total") == 2
