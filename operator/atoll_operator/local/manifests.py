"""The manifest of a run: made for a script, with this machine's folders, as its folder keeps it.

All functions work on the manifest as a document (mappings and lists, as YAML reads them), because
what a run folder keeps is a manifest that a person can read, change and apply, not the job with
all its defaults. Those that change a document are given one that has been checked.
"""

import copy
import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.api.spec import API_VERSION, KIND
from atoll_operator.local import processes
from atoll_operator.local.gpus import RESOURCE
from atoll_protos.errors import SpecError

Document = dict[str, Any]

NAME_CHARACTERS_MAX = 30  # of a script's job: names of objects join it to those of regions
REGION = "local"  # of a script's learners when no regions are named
HEADER = "# What `atoll run` has trained in this folder"
NOTES = """
# Train it again:  atoll run {file}
# In a cluster:    give the learner's container an image that has Atoll and the script, make
#                  workingDir its folder there, name the cluster's regions, and kubectl apply.
"""


def of_script(
    script: Path,
    arguments: Sequence[str],
    *,
    learners: int | None,
    steps: int | None,
    regions: Sequence[str],
) -> Document:
    """A manifest whose learners run `python SCRIPT ARGUMENTS`; raises SpecError.

    Learners are spread over the regions in turn; without `regions` they are in one. Without
    `learners` there is one in each region, and two where no regions are named.
    """
    if not script.is_file():
        raise SpecError(str(script), "is not there", "give the path of a script or a manifest")
    if steps is None:
        raise SpecError("--steps", "is missing", "give the length of the training, as --steps 400")
    names = list(regions) or [REGION]
    count = learners or (len(regions) or 2)
    if count < len(names):
        problem = f"{count} learners cannot be in {len(names)} regions"
        raise SpecError("--learners", problem, "give at least one learner for each region")
    container = {"name": "learner", "command": ["python", str(script)]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _name(script)},
        "spec": {
            "steps": steps,
            "learner": {
                "template": {
                    "spec": {
                        "containers": [
                            {**container, **({"args": list(arguments)} if arguments else {})}
                        ]
                    }
                }
            },
            "regions": [
                {"name": name, "learners": len(range(number, count, len(names)))}
                for number, name in enumerate(names)
            ],
        },
    }


def with_gpus(document: Document, count: int) -> Document:
    """The same manifest, in which every learner asks for so many GPUs; 0: it sees none."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    _limit(_learner(spec), count)
    for region in spec["regions"]:
        own = region.get("podOverrides") or {}
        if own.get("resources"):
            _limit(own, count)
    return changed


def with_processes(document: Document, count: int) -> Document:
    """The same manifest, in which every learner is so many processes of its command.

    Raises SpecError for a command that cannot be started so.
    """
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    container = _learner(spec)
    overrides = {
        f"spec.regions[{region['name']}].podOverrides": region.get("podOverrides") or {}
        for region in spec["regions"]
    }
    for field, own in overrides.items():
        if own.get("command"):
            own["command"] = processes.launched(own["command"], count, field)
        if own.get("env"):
            own["env"] = processes.without_number(own["env"])
    if container.get("command") or not all(own.get("command") for own in overrides.values()):
        given = container.get("command") or []
        if words := processes.launched(given, count, "spec.learner.template"):
            container["command"] = words
    env = processes.without_number(container.get("env") or [])
    container["env"] = [*env, {"name": processes.NUMBER, "value": str(count)}]
    return changed


def with_folders(document: Document, folder: Path) -> Document:
    """The same manifest for any current folder: relative working folders are made absolute.

    A container that names a command or arguments runs in `folder` if it names no working folder.
    """
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    overrides = [region.get("podOverrides") or {} for region in spec["regions"]]
    named = any(each.get("command") or each.get("args") for each in overrides)
    if named:
        _learner(spec)
    for role in ("learner", "evaluator"):
        template = (spec.get(role) or {}).get("template") or {}
        for container in ((template.get("spec") or {}).get("containers") or [])[:1]:
            if named or {"command", "args", "workingDir"} & container.keys():
                container["workingDir"] = str(folder / (container.get("workingDir") or ""))
        named = False
    return changed


def kept(text: str, document: Document, command: Sequence[str], out: Path) -> str:
    """manifest.yaml of a run folder: `text` with `document` in the place of its job.

    The text itself is kept, comments and all, when the job in it is the same.
    """
    documents = [each for each in yaml.safe_load_all(text) if each is not None]
    mine = [each.get("kind") == KIND for each in documents]
    if document not in documents:
        number = mine.index(True) if any(mine) else 0
        documents[number] = document
        text = yaml.safe_dump_all(documents, sort_keys=False, width=100)
    if text.startswith(HEADER):
        return text
    ran = " ".join(shlex.join(["atoll", "run", *command]).splitlines())
    return f"{HEADER}:\n#   {ran}{NOTES.format(file=out / 'manifest.yaml')}{text}"


def default_out(name: str, now: float) -> Path:
    """A new run folder below the current one; `now` is in Unix seconds."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    folder = Path("runs") / f"{name}-{moment}"
    number = 2
    while os.path.lexists(folder):
        folder = folder.with_name(f"{name}-{moment}-{number}")
        number += 1
    return folder


def _name(script: Path) -> str:
    """The name of a script's job."""
    name = re.sub("[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    return name[:NAME_CHARACTERS_MAX].strip("-") or "script"


def _learner(spec: Document) -> Document:
    """The container that trains, which is made where the manifest has none."""
    place = spec
    for key in ("learner", "template", "spec"):
        place[key] = place.get(key) or {}
        place = place[key]
    place["containers"] = place.get("containers") or [{"name": "learner"}]
    container: Document = place["containers"][0]
    return container


def _limit(container: Document, count: int) -> None:
    for key in ("resources", "limits"):
        container[key] = container.get(key) or {}
        container = container[key]
    container[RESOURCE] = count
