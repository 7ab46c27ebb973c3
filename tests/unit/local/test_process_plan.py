"""The manifest's plan for one machine: what a pod would be, as a process."""

import sys
from pathlib import Path

from atoll_operator.api.job.parsing import parse, without_effect_here
from atoll_operator.api.job.process_inputs import TRAIN, run_file
from atoll_operator.local import process_plan
from atoll_protos.environment import Env, Torchrun, of_hosts

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
ENDPOINTS = process_plan.endpoints_at((7000, 7001))


HOSTS = MANIFEST.replace("  learner:\n", "  learner:\n    hosts: 2\n")


def planned(
    text: str = MANIFEST, *, new: bool = True, gpus: dict[str, str] | None = None
) -> dict[str, process_plan.Planned]:
    ports = {"us-east-0": 1, "us-east-1": 2, "eu-west-0": 3} if "hosts:" in text else {}
    found = process_plan.processes(parse(text), OUT, ENDPOINTS, gpus or {}, new=new, meetings=ports)
    return {each.name: each for each in found}


def test_only_shards_of_a_new_run_may_begin_it_and_an_evaluator_has_no_slot() -> None:
    assert "--new" in planned()["shard-0"].command
    begin, end = MANIFEST.index("  learner:"), MANIFEST.index("  regions:")
    text = MANIFEST[:begin] + MANIFEST[end:] + "  evaluator: {everySteps: 10}\n"
    processes = planned(text, new=False)
    assert run_file(parse(text)).evaluator_every == 10
    assert "--new" not in processes["shard-0"].command
    assert processes["us-east-0"].command == (sys.executable, *TRAIN)  # without a template
    assert processes["evaluator"].role == "evaluator"
    assert Env.SLOT not in processes["evaluator"].env


def test_shards_listen_on_a_socket_each() -> None:
    endpoints = process_plan.endpoints_in(Path("/s"), 2)
    assert endpoints == ["unix:/s/shard-0", "unix:/s/shard-1"]
    found = process_plan.processes(parse(MANIFEST), OUT, endpoints, {}, new=True)
    shard = next(each for each in found if each.name == "shard-1")
    assert shard.command[shard.command.index("--listen") + 1] == shard.endpoint == endpoints[1]
    assert {each.env[Env.ENDPOINTS] for each in found} == {",".join(endpoints)}


def test_each_shard_and_slot_has_a_process_with_variables_as_in_kubernetes() -> None:
    processes = planned()
    assert list(processes) == ["shard-0", "shard-1", "us-east-0", "us-east-1", "eu-west-0"]
    for each in processes.values():
        assert each.env[Env.RUN_FILE] == "/out/run.json"
        assert each.env[Env.ENDPOINTS] == "127.0.0.1:7000,127.0.0.1:7001"
    first = processes["us-east-1"]
    assert first.command == ("python", "train.py", "--slot", "us-east-1", "--size", "big")
    assert (first.env["TWICE"], first.folder) == ("big-big", "code")
    assert processes["eu-west-0"].command[-1] == "small"
    own = MANIFEST.replace("podOverrides: {", "podOverrides: {command: [sh, -c], args: [x],")
    processes = planned(own)
    assert processes["eu-west-0"].command == ("sh", "-c", "x")
    assert processes["us-east-0"].command[:2] == ("python", "train.py")


def test_shards_keep_their_state_in_the_run_folder_or_in_the_run_s_own_folder_of_a_bucket() -> None:
    def told(storage: str) -> str:
        job = parse(MANIFEST, (f"spec.syncer.storage={storage}",))
        job = job.model_copy(update={"uid": "u1"})
        planned = process_plan.processes(job, OUT, ENDPOINTS, {}, new=True)
        assert not [each for each in planned[2:] if "minio" in str(each)]
        command = planned[1].command
        assert "--export /out/export" in " ".join(command)
        return " ".join(command[command.index("--store") : command.index("--tape")])

    assert told("{type: PersistentVolumeClaim}") == "--store /out/commits/1"
    url = "url: 's3://b/runs'"
    assert told(f"{{type: ObjectStore, {url}}}") == "--store s3://b/runs/u1/1"
    there = told(f"{{type: ObjectStore, {url}, endpoint: 'http://minio:9000'}}")
    assert there == "--store s3://b/runs/u1/1 --store-endpoint http://minio:9000"


def test_what_only_a_cluster_can_do_is_said() -> None:
    lines = without_effect_here(parse(MANIFEST))
    assert not any("image" in line or "resources" in line for line in lines)
    mounted = MANIFEST.replace("            resources: {}", "            envFrom: []")
    assert any("envFrom" in line for line in without_effect_here(parse(mounted)))
    assert any("nodeSelector" in line and "eu-west" in line for line in lines)


def test_a_learner_of_several_hosts_is_a_launcher_for_each_as_in_a_cluster() -> None:
    learners = {each.name: each for each in planned(HOSTS).values() if each.role == "learner"}
    names = ["us-east-0", "us-east-1", "eu-west-0"]
    assert [*learners] == [f"{slot}-{host}" for slot in names for host in (0, 1)]
    second = learners["us-east-1-1"]
    assert (second.whole, second.slot, second.host) == ("us-east-1", "us-east-1", 1)
    launch = ("python", "-m", "atoll_worker", "launch", "--")
    words = ("python", "train.py", "--slot", "us-east-1", "--size", "big")
    assert second.command == (*launch, *words)
    assert second.env[Env.SLOT] == "us-east-1"
    wanted = of_hosts(
        slot="us-east-1", hosts=2, hosts_min=2, processes=1, first_host="127.0.0.1:2", host=1
    )
    assert wanted.items() <= second.env.items()
    assert learners["eu-west-0-0"].env[Torchrun.ENDPOINT] == "127.0.0.1:3"
    assert not [line for line in without_effect_here(parse(HOSTS)) if "hosts" in line]


def test_a_host_has_a_process_for_each_of_its_gpus_unless_the_template_says_how_many() -> None:
    own = 'env: [{name: PET_NPROC_PER_NODE, value: "2"}, {name: SIZE'
    for text, number in ((HOSTS, "3"), (HOSTS.replace("env: [{name: SIZE", own, 1), "2")):
        found = planned(text, gpus={"us-east-0-1": "4,5,6"})["us-east-0-1"]
        assert found.env[Torchrun.PROCESSES] == number
