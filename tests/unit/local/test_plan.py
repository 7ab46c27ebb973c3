"""The manifest's plan for one machine: what a pod would be, as a process."""

import sys
from pathlib import Path

from atoll_operator.api.manifest import parse
from atoll_operator.api.runfile import TRAIN, run_file
from atoll_operator.api.support import without_effect_here
from atoll_operator.local import plan
from atoll_protos.codecs import Wire
from atoll_protos.environment import Env
from atoll_protos.run import Fragments, Merge, Quorum, Sync
from atoll_protos.torchrun import Torchrun, of_hosts

MANIFEST = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 100
  learner:
    template:
      spec:
        containers:
          - name: learner
            image: nobody/learner
            command: [python, train.py]
            args: [--slot, $(ATOLL_SLOT), --size, $(SIZE)]
            workingDir: code
            env: [{name: SIZE, value: big}, {name: TWICE, value: $(SIZE)-$(SIZE)}]
            resources: {}
  regions:
    - {name: us-east, learners: 2}
    - {name: eu-west, podOverrides: {env: [{name: SIZE, value: small}], nodeSelector: {a: b}}}
  syncer: {region: us-east, shards: 2}
"""
OUT = Path("/out")


def planned(text: str = MANIFEST, *, new: bool = True) -> dict[str, plan.Planned]:
    return {each.name: each for each in plan.processes(parse(text), OUT, (7000, 7001), {}, new=new)}


def test_there_is_a_process_for_every_shard_and_slot() -> None:
    assert list(planned()) == ["shard-0", "shard-1", "us-east-0", "us-east-1", "eu-west-0"]


def test_variables_are_expanded_as_kubernetes_does_it() -> None:
    processes = planned()
    first = processes["us-east-1"]
    assert first.command == ("python", "train.py", "--slot", "us-east-1", "--size", "big")
    assert first.env["TWICE"] == "big-big"
    assert first.folder == "code"
    assert processes["eu-west-0"].command[-1] == "small"


def test_a_region_may_have_another_command_and_other_arguments() -> None:
    text = MANIFEST.replace("podOverrides: {", "podOverrides: {command: [sh, -c], args: [x],")
    processes = planned(text)
    assert processes["eu-west-0"].command == ("sh", "-c", "x")
    assert processes["us-east-0"].command[:2] == ("python", "train.py")


def test_every_process_learns_run_file_and_endpoints() -> None:
    for each in planned().values():
        assert each.env[Env.RUN_FILE] == "/out/run.json"
        assert each.env[Env.ENDPOINTS] == "127.0.0.1:7000,127.0.0.1:7001"


def test_only_a_new_run_may_be_minted_at_once() -> None:
    assert "--new" in planned()["shard-0"].command
    assert "--new" not in planned(new=False)["shard-0"].command


def test_without_a_template_the_built_in_example_trains() -> None:
    text = MANIFEST[: MANIFEST.index("  learner:")] + MANIFEST[MANIFEST.index("  regions:") :]
    command = planned(text)["us-east-0"].command
    assert command == (sys.executable, *TRAIN)


def test_an_evaluator_is_a_process_without_a_slot() -> None:
    evaluator = planned(MANIFEST + "  evaluator: {everySteps: 10}\n")["evaluator"]
    assert evaluator.role == "evaluator"
    assert Env.SLOT not in evaluator.env
    assert run_file(parse(MANIFEST + "  evaluator: {everySteps: 10}\n")).evaluator_every == 10


def test_what_only_a_cluster_can_do_is_said() -> None:
    lines = without_effect_here(parse(MANIFEST))
    assert not any("image" in line or "resources" in line for line in lines)
    mounted = MANIFEST.replace("            resources: {}", "            envFrom: []")
    assert any("envFrom" in line for line in without_effect_here(parse(mounted)))
    assert any("nodeSelector" in line and "eu-west" in line for line in lines)


def test_presets_are_the_published_systems() -> None:
    def sync(text: str) -> Sync:
        return run_file(parse(MANIFEST + text)).sync

    plain = sync("  sync: {preset: DiLoCo, period: 20}\n")
    assert (plain.fragments, plain.overlap, plain.lockstep) == (1, 0, True)
    assert plain.quorum is Quorum.ALL
    assert (plain.merge, plain.grace) == (Merge.MEAN, False)
    assert (plain.wire_up, plain.wire_down) == (Wire.F32, Wire.F32)
    streaming = sync("  sync: {preset: StreamingDiLoCo}\n")
    assert streaming.lockstep
    assert (streaming.wire_up, streaming.blend) == (Wire.INT4, 0.5)
    decoupled = sync("")
    assert not decoupled.lockstep
    assert (decoupled.merge, decoupled.fragments) == (Merge.RADIAL_DIRECTIONAL, Fragments.AUTO)
    assert sync("  sync: {preset: DiLoCo, period: 20, quorum: 2}\n").quorum == 2


def test_a_learner_of_several_hosts_is_a_launcher_for_each_as_in_a_cluster() -> None:
    text = MANIFEST.replace("  learner:\n", "  learner:\n    hosts: 2\n")
    job = parse(text)
    found = plan.processes(job, OUT, (7000, 7001), {}, new=True, meetings=(1, 2, 3))
    learners = {each.name: each for each in found if each.role == "learner"}
    names = ["us-east-0", "us-east-1", "eu-west-0"]
    assert [*learners] == [f"{slot}-{host}" for slot in names for host in (0, 1)]
    second = learners["us-east-1-1"]
    assert (second.whole, second.slot, second.host) == ("us-east-1", "us-east-1", 1)
    launch = ("python", "-m", "atoll_worker", "launch", "--")
    words = ("python", "train.py", "--slot", "us-east-1", "--size", "big")
    assert second.command == (*launch, *words)
    assert second.env[Env.SLOT] == "us-east-1"
    wanted = of_hosts(
        slot="us-east-1",
        hosts=2,
        hosts_min=2,
        processes=1,
        first_host="127.0.0.1:2",
        host=1,
    )
    assert wanted.items() <= second.env.items()
    assert learners["eu-west-0-0"].env[Torchrun.ENDPOINT] == "127.0.0.1:3"
    assert not [line for line in without_effect_here(job) if "hosts" in line]


def test_a_host_has_a_process_for_each_of_its_gpus_unless_the_template_says_how_many() -> None:
    text = MANIFEST.replace("  learner:\n", "  learner:\n    hosts: 2\n")
    gpus = {"us-east-0-1": "4,5,6"}

    def number(text: str) -> str:
        found = plan.processes(parse(text), OUT, (1, 2), gpus, new=True, meetings=(1, 2, 3))
        return next(each for each in found if each.name == "us-east-0-1").env[Torchrun.PROCESSES]

    assert number(text) == "3"
    own = 'env: [{name: PET_NPROC_PER_NODE, value: "2"}, {name: SIZE'
    assert number(text.replace("env: [{name: SIZE", own, 1)) == "2"
