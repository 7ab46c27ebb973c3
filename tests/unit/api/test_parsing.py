"""A wrong manifest gets one line: the field, what is wrong with it, and what to do."""

from pathlib import Path

import pytest

from atoll_operator.api.job import parsing
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.local.atoll_run import with_checkpoints
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Checkpoints
from unit.kube.cluster_values import MANIFEST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("spec.steps=-3", "spec.steps: must be at least 1, got -3; give 1 or more"),
        ("spec.learner.hosts=65", "spec.learner.hosts: must be at most 64, got 65; give 64 or"),
        ("spec.stepz=3", "spec.stepz: is unknown; did you mean steps?"),
        ("spec.frobnicate=3", "spec.frobnicate: is unknown; remove it or fix its spelling"),
        ("spec.learner.host=2", "spec.learner.host: is unknown; did you mean hosts?"),
        ("spec.regions=[{name: a, learner: 2}]", "spec.regions[0].learner: is unknown; did you"),
        (
            "spec.regions=[{name: a, podOverrides: {label: {}}}]",
            "spec.regions[0].podOverrides.label: is unknown; did you mean labels?",
        ),
        ("spec.sync.outer={momentum: 0.9}", "spec.sync.outer.momentum: must be a string, got 0.9;"),
        ("spec.sync.wire.up=int3", "spec.sync.wire.up: must be 'f32', 'bf16', 'int8', 'int4' or"),
        ("spec.sync.wire.down=f8", "spec.sync.wire.down: must be 'f32', 'bf16', 'int8' or 'int4',"),
        (
            "spec.sync.wire.down=int2",
            "spec.sync.wire.down: must not be a format for offers alone, got 'int2'; use int4",
        ),
        (
            "spec.tokens=5",
            "spec.steps: steps and tokens are both given, or neither is; give",
        ),
        ("spec.sync.normLimit=1", "spec.sync.normLimit: must be 0, or more than 1; use 0"),
        ("spec.sync.outer.learningRate='0.0'", "spec.sync.outer.learningRate: must match"),
        ("spec.regions=[]", "spec.regions: must have at least 1 entries, got []; add some"),
        ("spec.regions=[{learners: 1}]", "spec.regions[0].name: is missing; add it"),
        ("spec.syncer.storage.size=5 GB", "spec.syncer.storage.size: must match"),
        ("spec.sync=5", "spec.sync: must be a mapping, got 5; give it named fields"),
        ("spec.suspend=maybe", "spec.suspend: must be true or false, got 'maybe'; write it with"),
        ("spec.regions=[{name: a}, {name: a}]", "spec.regions: a is there twice; give each"),
        ("metadata.name=", "metadata.name: is missing; add it"),
        ("spec=3", "--set spec=3: must have the form spec.FIELD=VALUE; write --set spec.steps"),
        ("spec.steps.x=2", "spec.steps.x: steps has no named fields; set"),
        ("spec.regions.9.learners=2", "spec.regions.9.learners: the list has no entry 9; give a"),
        ("spec.regions.0.learners=some", "spec.regions[0].learners: must be a whole number, got"),
    ],
)
def test_a_wrong_field_is_named_with_problem_and_remedy(change: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(MANIFEST, (change,))
    assert str(caught.value).startswith(message)


def test_changes_are_taken_as_a_shell_gives_them() -> None:
    changes = ("spec.sync.outer.momentum=0.9", "spec.sync.outer.learningRate=1", "spec.steps=7")
    entries = ("spec.regions.0.learners=5", "spec.regions.eu-west.learners=6")
    hosts = ("spec.learner.hosts=4", "spec.learner.template={spec: {ofAnotherKubernetes: 1}}")
    spec = parse(MANIFEST, (*changes, *entries, *hosts)).spec
    assert (spec.sync.outer.momentum, spec.sync.outer.learning_rate) == ("0.9", "1")  # as strings
    assert (spec.steps, [each.learners for each in spec.regions]) == (7, [5, 6])
    template = spec.learner.template.model_dump(by_alias=True)
    assert template["spec"]["ofAnotherKubernetes"] == 1  # a field that no model here has
    assert spec.learner.hosts_needed == 4
    fewer = parse(MANIFEST, (*hosts, "spec.learner.hostsMin=2"))
    assert fewer.spec.learner.hosts_needed == 2


def test_the_built_in_evaluator_does_not_fit_a_script_of_ones_own() -> None:
    def refused(*containers: str) -> SpecError | None:
        learner, evaluator = (
            f"template={{spec: {{containers: [{{name: x, {each}}}]}}}}" for each in containers
        )
        changes = ("spec.learner." + learner, "spec.evaluator." + evaluator)
        job = parse(MANIFEST, (*changes, "spec.evaluator.everySteps=20"))
        found = parsing.on_this_machine(job)
        on_a_cluster = parsing.on_a_cluster(job)
        assert on_a_cluster is None or on_a_cluster.field == "spec.export"
        return found

    found = refused("command: [python, train.py]", "args: [--data, x]")
    assert str(found).startswith("spec.evaluator.template: has no command, so it measures the")
    assert "or remove spec.evaluator" in str(found)
    assert refused("command: [python, train.py]", "command: [python, observe.py]") is None
    assert refused("command: [atoll-worker, 'bytegpt.train:main']", "args: []") is None
    assert refused("args: [--layers, '2']", "args: []") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "manifest: must be a mapping; start it with apiVersion: atoll.dev/v1alpha1"),
        ("kind: Pod", "apiVersion: must be atoll.dev/v1alpha1, got None; write apiVersion: atoll"),
        ("a: [", "manifest: is not YAML"),
        (f"{MANIFEST}---\n{MANIFEST}", "manifest: holds 2 jobs; write one job per file"),
    ],
)
def test_a_file_that_holds_no_job_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("field", ["spec.syncer.storage", "spec.export"])
def test_a_bucket_is_named_by_the_url_of_its_provider(field: str) -> None:
    storage = "spec.syncer.storage.type=ObjectStore"
    before = ("spec.syncer.storage.url=s3://b",)
    given = (storage, *before) if field == "spec.export" else (storage,)
    for url in ("s3://b", "s3://my.bucket-1/a/b_c/d=1", "gs://b/x", "az://account/container/x"):
        assert parse(MANIFEST, (*given, f"{field}.url={url}")).spec.syncer.storage.url
    for url in ("http://b", "s3:/b", "s3://", "s3://b/", "s3://b//x", "s3://b/../x", "s3://b?x=1",
                "az://account", "s3a://b", "s3://b/a b"):  # fmt: skip
        with pytest.raises(SpecError, match=rf"{field}\.url: must match"):
            parse(MANIFEST, (*given, f"{field}.url={url}"))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("endpoint", "https://minio.example:9000", "minio:9000"),
        ("endpoint", "http://[fd00::1]:9000", "s3://b"),
        ("secret", "my.keys-1", "My Keys"),
    ],
)
def test_where_a_bucket_is_and_its_secret_have_a_form(name: str, good: str, bad: str) -> None:
    storage = "spec.syncer.storage={{type: ObjectStore, url: 's3://b', {}: '{}'}}"
    found = parse(MANIFEST, (storage.format(name, good),)).spec.syncer.storage
    assert (getattr(found, name), found.outlives_pods, found.has_claims) == (good, True, False)
    with pytest.raises(SpecError, match=rf"spec\.syncer\.storage\.{name}: must match"):
        parse(MANIFEST, (storage.format(name, bad),))


def test_what_no_executor_can_do_is_no_field_of_the_manifest() -> None:
    for change in ("spec.checkpoint.format=DCP", "spec.syncer.storage.uri='s3://x'",
                   "spec.syncer.storage.type=Tape", "spec.export.url=ftp://x/y"):  # fmt: skip
        with pytest.raises(SpecError, match=change.partition("=")[0]):
            parse(MANIFEST, (change,))
    assert parsing.nowhere(parse(MANIFEST)) is None


def test_what_atoll_run_leaves_to_clusters_is_listed() -> None:
    changes = ("spec.export={url: 'file:///x'}",
               "spec.activeDeadlineSeconds=5", "spec.failure={nodeLossSeconds: 5}")  # fmt: skip
    lines = parsing.without_effect_here(parse(MANIFEST, changes))
    assert lines == [
        "spec.failure is for clusters only",
        "spec.export.url is for clusters only",
        "spec.activeDeadlineSeconds is for clusters only",
    ]
    assert parsing.without_effect_here(parse(MANIFEST)) == []
    bucket = (
        "spec.syncer.storage={type: ObjectStore, url: 's3://b', endpoint: 'http://x', secret: k}"
    )
    lines = parsing.without_effect_here(parse(MANIFEST, (bucket,)))
    assert lines == ["spec.syncer.storage.secret is for clusters only"]


LAUNCHED = (
    "spec.learner.template={{spec: {{containers: [{{name: l, command: {}, env: [{{name: {}, value: "
    "'{}'}}]}}]}}}}"
)


@pytest.mark.parametrize(
    ("hosts", "command", "name", "value", "said"),
    [
        (2, "[torchrun, --standalone, a.py]", "X", "", "its command has --standalone, and spec.l"),
        (1, "[torchrun, --standalone, a.py]", "X", "", ""),
        (2, "[torchrun, --nnodes=1, a.py]", "X", "", "its command has --nnodes 1, and spec.learn"),
        (2, "[torchrun, --nnodes, '1:4', a.py]", "X", "", "its command has --nnodes 1:4, and spec"),
        (2, "[sh, -c, 'torchrun --nnodes 3 a.py']", "X", "", "its command has --nnodes 3, and"),
        (1, "[atoll-worker, launch, --nnodes, '2', --, a.py]", "X", "", "its command has --nnod"),
        (2, "[torchrun, --nnodes, '1:2', a.py]", "X", "", ""),
        (2, "[torchrun, --nnodes=$PET_NNODES, a.py]", "X", "", ""),
        (2, "[python, a.py, --standalone, --nnodes, '3']", "X", "", ""),
        (2, "[python, a.py]", "PET_NNODES", "3", "PET_NNODES in its env is 3, and spec.learner.ho"),
        (2, "[torchrun, a.py, --nnodes, '3']", "X", "", ""),
        (2, "[python, a.py]", "PET_NNODES", "1:2", ""),
        (2, "[python, a.py]", "PET_NPROC_PER_NODE", "0", "PET_NPROC_PER_NODE in its env is '0'; g"),
        (1, "[python, a.py]", "PET_NPROC_PER_NODE", "two", "PET_NPROC_PER_NODE in its env is 'tw"),
        (2, "[python, a.py]", "PET_NPROC_PER_NODE", "gpu", ""),
        (2, "[python, a.py]", "PET_NPROC_PER_NODE", "8", ""),
    ],
)
def test_a_launcher_that_is_told_of_other_hosts_is_refused(
    hosts: int, command: str, name: str, value: str, said: str
) -> None:
    """By both executors: its processes would wait for ever for those that never come."""
    changes = (LAUNCHED.format(command, name, value), f"spec.learner.hosts={hosts}")
    refused = parsing.nowhere(parse(MANIFEST, changes))
    assert (str(refused) if refused else "").startswith(
        f"spec.learner.template: {said}" if said else ""
    )
    assert bool(refused) == bool(said)


def test_checkpoints_go_to_a_place_that_every_shard_reaches() -> None:
    given = "spec.checkpoint={everySteps: 5, from: 'file:///data/step-3'}"
    job = parse(MANIFEST, ("spec.syncer.shards=1", given))
    refused = parsing.on_a_cluster(job)
    assert refused is not None
    assert str(refused).startswith("spec.checkpoint.url: is missing")
    assert parsing.on_this_machine(job) is None
    here = with_checkpoints(job, Path("/runs/one"))
    assert run_file(here).checkpoint == Checkpoints(url="file:///runs/one/checkpoints", every=5)
    assert run_file(here).restore_from == "file:///data/step-3"
    assert run_file(here.model_copy(update={"uid": "u-1"})).uid == "u-1"
    assert run_file(here).hash == run_file(parse(MANIFEST, ("spec.syncer.shards=1",))).hash
    job = parse(MANIFEST, (given, "spec.checkpoint.url='s3://b/c'", "spec.checkpoint.keep=2"))
    found = run_file(with_checkpoints(job, Path("/runs/one"))).checkpoint
    assert found == Checkpoints(url="s3://b/c", every=5, keep=2)
    for field in ("url", "from"):
        with pytest.raises(SpecError, match=rf"spec\.checkpoint\.{field}: must match"):
            parse(MANIFEST, (f"spec.checkpoint.{field}=ftp://x/y",))
