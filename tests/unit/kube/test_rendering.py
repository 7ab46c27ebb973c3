"""An upgrade of the operator restarts nothing that runs; an edit brings the new rendering."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.names import LENGTH_FILE, RENDERED, RUN_FILE, Annotation
from atoll_operator.kube.observed.objects import excluded_nodes, key_of
from atoll_operator.kube.plan import accepted, pods
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.replacements import Exclusions
from atoll_protos.job.run_file import RunFile
from unit.kube.cluster_values import EVERYTHING, SETTINGS, job, stored
from unit.kube.cluster_values import children as builder

Live = dict[tuple[str, str], dict[str, Any]]
NEW = replace(SETTINGS, worker_image="worker:2", syncer_image="syncer:2", pull_policy="Always")
MORE = "spec.regions=[{name: us-east, learners: 5}, {name: eu-west}]"
OTHER_REGION = "spec.regions=[{name: us-east, learners: 2}, {name: eu-west}, {name: mars}]"
EDIT = "spec.regions=[{name: us-east, learners: 2}, {name: eu-west, podOverrides: {args: [x]}}]"
WORKLOADS = ("StatefulSet", "Deployment")


def keyed(objects: list[dict[str, Any]]) -> Live:
    return {key_of(each): each for each in objects}


def next_pass(
    live: Live,
    *changes: str,
    generation: int,
    settings: Any = SETTINGS,
    running: Running = EVERYTHING,
    exclusions: Exclusions = Exclusions(),  # noqa: B008
) -> Live:
    """The children that a pass wants, which finds these."""
    found = accepted.renderings_of(
        job(*changes), generation, stored(*changes), live.values(), running
    )
    made = builder(*changes, settings=settings, running=running, renderings=found,
                   exclusions=exclusions)  # fmt: skip
    return keyed(made.objects())


def begun() -> Live:
    """A job that runs since its first generation."""
    return next_pass({}, generation=1)


def templates(live: Live) -> dict[tuple[str, str], Any]:
    return {key: each["spec"]["template"] for key, each in live.items() if key[0] in WORKLOADS}


def images(live: Live) -> dict[str, str]:
    return {
        name: template["spec"]["containers"][0]["image"]
        for (_, name), template in templates(live).items()
    }


def test_an_upgrade_changes_no_template_of_a_running_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = begun()
    monkeypatch.setattr(pods, "GONE_NODE_SECONDS", 31)
    for _ in range(2):
        after = next_pass(before, generation=1, settings=NEW)
        assert after == before


def test_a_changed_run_file_reaches_no_running_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = begun()
    whole = RunFile.to_json
    monkeypatch.setattr(RunFile, "to_json", lambda file: whole(file).replace("{", '{"new": 1,', 1))
    after = next_pass(before, generation=1)
    assert after == before
    many = next_pass(before, MORE, generation=2)
    config = pods.run_config_of(templates(many)["StatefulSet", "tiny-us-east"])
    text = many["ConfigMap", config]["data"][RUN_FILE]
    assert '"new"' not in text
    assert [each["learners"] for each in json.loads(text)["regions"]] == [5, 1]


def test_another_number_of_learners_or_region_brings_no_new_rendering() -> None:
    before = begun()
    many = next_pass(before, MORE, generation=2, settings=NEW)
    assert set(images(many).values()) == {"worker:1", "syncer:1"}
    assert many["StatefulSet", "tiny-us-east"]["spec"]["replicas"] == 5
    marks = [
        {key: each["metadata"]["annotations"][Annotation.TEMPLATE] for key, each in found.items()}
        for found in (templates(before), templates(many))
    ]
    assert marks[0] == marks[1]
    more = next_pass(many, OTHER_REGION, generation=3, settings=NEW)
    assert images(more)["tiny-mars"] == "worker:1"  # the version of the run that it joins


def test_an_edit_brings_the_new_rendering_to_all_workloads_of_the_job() -> None:
    after = next_pass(begun(), EDIT, generation=2, settings=NEW)
    assert set(images(after).values()) == {"worker:2", "syncer:2"}
    assert next_pass(after, EDIT, generation=2, settings=NEW) == after


def test_an_edit_without_an_upgrade_restarts_only_what_it_changes() -> None:
    before, after = templates(begun()), templates(next_pass(begun(), EDIT, generation=2))
    assert {key for key in before if before[key] != after[key]} == {("StatefulSet", "tiny-eu-west")}


def test_a_shard_that_gets_an_edit_later_gets_the_version_of_the_others() -> None:
    before = begun()
    after = next_pass(before, EDIT, generation=2, settings=NEW)
    name = ("Deployment", "tiny-syncer-1")
    held = after | {name: before[name]}  # not applied yet, when the operator is upgraded again
    newest = replace(SETTINGS, worker_image="worker:3", syncer_image="syncer:3")
    assert images(next_pass(held, EDIT, generation=2, settings=newest)) == images(after)


def test_the_ways_for_other_clusters_are_no_edit_for_the_pods_of_the_syncers_cluster() -> None:
    ways = ("spec.syncer.endpoints=['a:1', 'b:2']", "spec.syncer.expose={type: NodePort}")
    assert accepted.inputs(job(*ways)) == accepted.inputs(job())
    elsewhere = accepted.inputs(job(*ways), home=False)
    assert elsewhere != accepted.inputs(job(), home=False)
    (_, exposed) = ways
    assert accepted.inputs(job(exposed), home=False) == accepted.inputs(job(), home=False)


def test_a_lost_node_is_excluded_from_a_kept_template_and_comes_back() -> None:
    before = begun()
    lost = Exclusions(nodes={"tiny-us-east": ("n1",), "tiny-syncer-0": ("n1", "n2")})
    away = next_pass(before, generation=1, settings=NEW, exclusions=lost)
    assert excluded_nodes(templates(away)["StatefulSet", "tiny-us-east"]) == ("n1",)
    assert excluded_nodes(templates(away)["Deployment", "tiny-syncer-0"]) == ("n1", "n2")
    assert next_pass(away, generation=1, settings=NEW) == before


def test_a_node_that_the_user_excludes_stays_so_in_a_template_of_an_earlier_version() -> None:
    field = "{key: metadata.name, operator: NotIn, values: [bad]}"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    change = f"""spec.learner.template.spec.affinity={{nodeAffinity: {{{required}:
        {{nodeSelectorTerms: [{{matchFields: [{field}]}}]}}}}}}"""
    before = next_pass({}, change, generation=1)
    lost = Exclusions(nodes={"tiny-us-east": ("n1",)})
    away = next_pass(before, change, generation=1, settings=NEW, exclusions=lost)
    assert excluded_nodes(templates(away)["StatefulSet", "tiny-us-east"]) == ("bad", "n1")
    assert next_pass(away, change, generation=1, settings=NEW) == before


def at_rest(live: Live) -> Live:
    found = copy.deepcopy(live)
    for key, each in found.items():
        if key[0] in WORKLOADS:
            each["spec"]["replicas"] = 0
    return found


def test_a_job_that_is_resumed_gets_the_present_rendering_and_one_that_rests_is_left() -> None:
    stopped = Running(learners=False, shards=False, evaluator=False)
    resting = next_pass(begun(), generation=2, running=stopped)
    assert next_pass(resting, generation=2, settings=NEW, running=stopped) == resting
    resumed = next_pass(resting, generation=3, settings=NEW)
    assert set(images(resumed).values()) == {"worker:2", "syncer:2"}


def test_a_suspended_job_whose_shards_stay_keeps_its_version() -> None:
    found = at_rest(begun())
    found["Deployment", "tiny-syncer-0"]["spec"]["replicas"] = 1
    resumed = next_pass(found, generation=3, settings=NEW)
    assert set(images(resumed).values()) == {"worker:1", "syncer:1"}


@pytest.mark.parametrize("name", [Annotation.RENDERED, Annotation.TEMPLATE])
def test_a_hash_that_somebody_has_edited_is_written_again(name: str) -> None:
    before = begun()
    for text in ("", "1", "{}", "1 other"):
        changed = copy.deepcopy(before)
        for key, each in changed.items():
            if key[0] in WORKLOADS:
                part = each if name == Annotation.RENDERED else each["spec"]["template"]
                part["metadata"]["annotations"][name] = text
        assert next_pass(changed, generation=1) == before or text == "1 other"


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON", '{"generation": 1, "images": {}}'])
def test_a_record_that_somebody_has_spoilt_makes_all_templates_anew(text: str) -> None:
    before = begun()
    changed = copy.deepcopy(before)
    changed["ConfigMap", "tiny-accepted"]["data"][RENDERED] = text
    assert next_pass(changed, generation=1) == before
    assert set(images(next_pass(changed, generation=1, settings=NEW)).values()) == {
        "worker:2", "syncer:2"
    }  # fmt: skip


def test_a_workload_that_is_lost_is_made_with_the_images_of_the_others() -> None:
    before = begun()
    lost = {key: each for key, each in before.items() if key != ("StatefulSet", "tiny-us-east")}
    images_alone = replace(SETTINGS, worker_image="worker:2", syncer_image="syncer:2")
    assert next_pass(lost, generation=1, settings=images_alone) == before


LONGER = "spec.steps=700"


def length_told(live: Live) -> str:
    return str(live["ConfigMap", "tiny-slots"]["data"][LENGTH_FILE])


def file_of(live: Live, kind: str, name: str) -> dict[str, Any]:
    config = pods.run_config_of(templates(live)[kind, name])
    found: dict[str, Any] = json.loads(live["ConfigMap", config]["data"][RUN_FILE])
    return found


def test_more_steps_restart_nobody_and_reach_the_shards_in_place() -> None:
    before = begun()
    after = next_pass(before, LONGER, generation=2, settings=NEW)
    assert length_told(before) == '{"revision": 1, "steps": 600}\n'
    assert length_told(after) == '{"revision": 2, "steps": 700}\n'
    for key, template in templates(before).items():
        mark = template["metadata"]["annotations"][Annotation.TEMPLATE]
        assert templates(after)[key]["metadata"]["annotations"][Annotation.TEMPLATE] == mark
        assert key[0] == "StatefulSet" or templates(after)[key] == template
    assert file_of(after, "StatefulSet", "tiny-us-east")["steps"] == 700  # for pods made later
    assert set(images(after).values()) == {"worker:1", "syncer:1"}


def test_a_later_edit_of_something_else_restarts_no_shard_of_a_longer_job() -> None:
    before = begun()
    longer = next_pass(before, LONGER, generation=2)
    later = next_pass(longer, LONGER, EDIT, generation=3)
    shards = {key for key in templates(before) if key[0] == "Deployment"}
    assert {key: templates(later)[key] for key in shards} == {
        key: templates(before)[key] for key in shards
    }
    changed = next_pass(longer, LONGER, "spec.seed=7", generation=3)
    assert file_of(changed, "Deployment", "tiny-syncer-0")["steps"] == 700


def test_a_run_file_that_was_deleted_is_made_again() -> None:
    before = begun()
    gone = {key: each for key, each in before.items() if key[0] != "ConfigMap"}
    assert next_pass(gone, generation=1) == before


def test_a_default_that_is_written_down_or_taken_away_is_no_edit() -> None:
    stored = """spec.regions=[{name: us-east, learners: 2, placement: Region, podOverrides:
      {nodeSelector: {}, tolerations: [], resources: {}, env: [], args: [], priorityClassName: ''}},
      {name: eu-west, learners: 1, podOverrides: {}}]"""
    given = ("spec.seed=0", "spec.syncer={shards: 2, storage: {type: Ephemeral}, endpoints: []}")
    live = next_pass({}, stored, *given, generation=1)
    for generation, changes in ((2, ()), (3, (stored, *given)), (4, (MORE,))):
        live = next_pass(live, *changes, generation=generation, settings=NEW)
        assert set(images(live).values()) == {"worker:1", "syncer:1"}


def test_an_edit_of_any_part_of_a_template_is_one() -> None:
    learner = "spec.learner.template.spec"
    for change in (
        f"{learner}.nodeSelector={{a: b}}",
        f"{learner}.securityContext={{runAsUser: null}}",
        f"{learner}.containers=[{{args: ['']}}]",
        "spec.syncer.template.spec.priorityClassName=high",
        "spec.evaluator={everySteps: 50, template: {metadata: {labels: {a: b}}}}",
        "spec.regions=[{name: us-east, learners: 2, placement: Anywhere}, {name: eu-west}]",
    ):
        after = next_pass(begun(), change, generation=2, settings=NEW)
        assert set(images(after).values()) == {"worker:2", "syncer:2"}, change
