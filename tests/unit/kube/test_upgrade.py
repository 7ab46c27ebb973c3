"""A job that an earlier version of the operator has made goes on under this one, unrestarted.

`earlier_children.json` is what that version has rendered of a job, and the job as its CRD has
stored it. It had no `fragments: auto` (24 where nothing was given), no length.json, and fewer
variables in its pods.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.manifest import from_object
from atoll_operator.api.runfile import run_file
from atoll_operator.api.spec import Job
from atoll_operator.kube import notes
from atoll_operator.kube.edges.api import NODES, path
from atoll_operator.kube.names import LENGTH_FILE, SLOTS_FILE, Annotation
from atoll_operator.kube.objects import key_of
from atoll_operator.kube.plan import configs, rendering
from atoll_operator.kube.plan.children import JobChildren
from atoll_protos.environment import Env
from atoll_protos.names import Label
from atoll_protos.run import Fragments, RunFile
from unit.kube.cluster_values import EVERYTHING, OWNER, SETTINGS
from unit.kube.world import World

EARLIER = json.loads((Path(__file__).parent / "earlier_children.json").read_text())
WORKLOADS = ("StatefulSet", "Deployment")
Live = dict[tuple[str, str], dict[str, Any]]


def before() -> Live:
    return {key_of(each): each for each in copy.deepcopy(EARLIER["children"])}


def stored(**spec: Any) -> Job:
    """The job as the earlier CRD has stored it, with these edits."""
    raw = copy.deepcopy(EARLIER["job"])
    raw["spec"] |= spec
    return from_object(raw, stored=True)


def next_pass(live: Live, job: Job, generation: int) -> Live:
    """The children that a pass of this version wants, which finds these."""
    found = rendering.decide(
        job,
        generation,
        [each for each in live.values() if each["kind"] in WORKLOADS],
        notes.run_files(each for each in live.values() if each["kind"] == "ConfigMap"),
        EVERYTHING,
        observed=2,
    )
    made = JobChildren(
        job=job,
        owner=OWNER,
        settings=SETTINGS,
        running=EVERYTHING,
        renderings=found,
        selectors={
            each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"]
            for each in live.values()
            if each["kind"] in WORKLOADS
        },
    )
    return {key_of(each): each for each in made.objects()}


def specs(live: Live) -> dict[tuple[str, str], Any]:
    return {key: each["spec"] for key, each in live.items() if "spec" in each}


def hashes(live: Live) -> dict[tuple[str, str], str]:
    """By workload, of the template that its pods carry: a pod with another one is restarted."""
    return {
        key: each["spec"]["template"]["metadata"]["annotations"][Annotation.TEMPLATE]
        for key, each in live.items()
        if key[0] in WORKLOADS
    }


def files(live: Live) -> dict[str, str]:
    """The texts of run files by the names of their ConfigMaps."""
    return notes.run_files(each for (kind, _), each in live.items() if kind == "ConfigMap")


def template_of(world: World, where: str) -> Any:
    return (world.server.children[where].get("spec") or {}).get("template")


def test_the_two_versions_render_such_a_job_in_another_way() -> None:
    fresh = next_pass({}, stored(), 1)
    assert hashes(fresh).keys() == hashes(before()).keys()
    for key, mark in hashes(fresh).items():
        assert hashes(before())[key] != mark
    assert stored().spec.sync.fragments is Fragments.AUTO
    assert all(json.loads(text)["sync"]["fragments"] == 24 for text in files(before()).values())


def test_no_spec_of_any_child_and_no_run_file_changes() -> None:
    live = before()
    for _ in range(2):
        after = next_pass(live, stored(), 2)
        assert specs(after) == specs(before())
        assert files(after) == files(before())
        live = after


def test_the_length_comes_beside_the_slots_of_shards_that_do_not_read_it() -> None:
    slots = next_pass(before(), stored(), 2)["ConfigMap", "tiny-slots"]["data"]
    assert slots[SLOTS_FILE] == before()["ConfigMap", "tiny-slots"]["data"][SLOTS_FILE]
    assert json.loads(slots[LENGTH_FILE]) == {"revision": 2, "steps": 600}


def test_more_learners_get_the_earlier_template_and_restart_nobody() -> None:
    live = next_pass(before(), stored(), 2)
    more = stored(regions=[{"name": "us-east", "learners": 3}, {"name": "eu-west"}])
    after = next_pass(live, more, 3)
    assert hashes(after) == hashes(before())
    assert after["StatefulSet", "tiny-us-east"]["spec"]["replicas"] == 3
    for key in (("Deployment", "tiny-syncer-0"), ("Deployment", "tiny-evaluator")):
        assert after[key]["spec"] == before()[key]["spec"]
    container = after["StatefulSet", "tiny-us-east"]["spec"]["template"]["spec"]["containers"][0]
    assert "PYTHONUNBUFFERED" not in {each["name"] for each in container["env"]}


@pytest.mark.parametrize("edited", [False, True])
def test_the_run_hash_of_the_earlier_version_is_that_of_the_same_run(edited: bool) -> None:
    """Shards and learners that the next edit renders again belong to the run that is stored."""
    spec = {"learner": {"template": {"metadata": {"labels": {"a": "b"}}}}} if edited else {}
    live = next_pass(before(), stored(), 2)
    after = files(next_pass(live, stored(**spec), 3 if edited else 2))
    assert (after != files(before())) == edited
    for text in files(before()).values():
        earlier = RunFile.from_json(text)
        for later in (*map(RunFile.from_json, after.values()), run_file(stored())):
            assert later.accepts(earlier.hash)


def test_an_edit_renders_all_workloads_again_from_this_version() -> None:
    live = next_pass(before(), stored(), 2)
    edited = stored(learner={"template": {"metadata": {"labels": {"a": "b"}}}})
    after = next_pass(live, edited, 3)
    assert not set(hashes(after).items()) & set(hashes(before()).items())
    (shard,) = after["Deployment", "tiny-syncer-0"]["spec"]["template"]["spec"]["containers"]
    assert Env.LENGTH_FILE in {each["name"] for each in shard["env"]}
    fresh = configs.run_config(configs.shards_file(edited)).text
    assert fresh in files(after).values()


def running() -> World:
    """The job as the operator of this version finds it: everything runs, and learners train."""
    world = World()
    server = world.server
    server.job = copy.deepcopy(EARLIER["job"])
    world.spec = copy.deepcopy(EARLIER["job"]["spec"])
    for (kind, name), each in before().items():
        each["metadata"] |= {"uid": f"uid-{name}", "generation": 1}
        each["status"] = {"observedGeneration": 1}
        server.children[path(kind, "demo", name)] = each
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    world.nodes.take(NODES, "ADDED", {"metadata": {"name": "n"}, **ready})
    world.server.add_pod("tiny-syncer-0-x", "shard", "n", **{Label.SHARD: "0"})
    slots = []
    for slot in ("us-east-0", "us-east-1", "eu-west-0"):
        region, _, ordinal = slot.rpartition("-")
        labels = {Label.REGION: region, "apps.kubernetes.io/pod-index": ordinal}
        server.add_pod(f"tiny-{slot}", "learner", "n", **labels)
        uid = f"uid-tiny-{slot}"
        slots.append(pb.SlotStatus(slot=slot, state=pb.SLOT_TRAINING, uid=uid))
    for where, each in server.children.items():
        if where.startswith(path("Pod", "demo", "")):
            each["metadata"]["labels"] |= {Label.JOB_UID: "job-uid"}
            each["status"]["conditions"] = ready["status"]["conditions"]
    world.shards.replies = [
        pb.StatusReply(run="r", state=pb.SHARD_SERVING, tick=60, steps=600, slots=slots)
    ]
    return world


def in_two_passes(world: World) -> list[str]:
    """What is written, without statuses and Events."""
    written = [*world.run(), *world.run()]
    return [each for each in written if each.startswith(("apply", "delete", "owner"))]


def test_passes_of_this_version_restart_nothing_until_the_job_is_edited() -> None:
    world = running()
    templates = {where: template_of(world, where) for where in world.server.children}
    assert {each.split()[0] for each in in_two_passes(world)} == {"apply"}
    assert {where: template_of(world, where) for where in world.server.children} == templates
    assert in_two_passes(world) == [], "the notes are of this version now"
    assert world.server.job is not None
    world.server.job["spec"]["learner"] = {"template": {"metadata": {"labels": {"a": "b"}}}}
    after_edit = in_two_passes(world)
    assert "apply Deployment tiny-syncer-0" in after_edit
    assert [each for each in after_edit if each.startswith("delete tiny-us-east-")]
