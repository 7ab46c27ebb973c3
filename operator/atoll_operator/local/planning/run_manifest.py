"""The manifest of a run: made for a script, with this machine's folders, as its folder keeps it.

All work on the checked document, because what a run folder keeps is a manifest that a person can
read, change and apply, not the job with all its defaults.
"""

import copy
import os
import re
import shlex
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.api.job.launching import DASHES, LAUNCHER, has_launcher, is_launched, within
from atoll_operator.api.job.process_inputs import TRAIN
from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.local.planning.gpus import RESOURCE
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun

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
    learners: int | None,
    steps: int | None,
    regions: Sequence[str],
) -> Document:
    """A manifest whose learners, spread over the regions, run the script. Raises SpecError."""
    if not script.is_file():
        raise SpecError(str(script), "is not there", "give the path of a script or a manifest")
    if steps is None:
        raise SpecError("--steps", "is missing", "give the length of the training, as --steps 400")
    names = list(regions) or [REGION]
    count = learners or (len(regions) or 2)
    if count < len(names):
        problem = f"{count} learners cannot be in {len(names)} regions"
        raise SpecError("--learners", problem, "give at least one learner for each region")
    container: Document = {"name": "learner", "command": ["python", str(script)]}
    if arguments:
        container["args"] = list(arguments)
    spread = [
        {"name": name, "learners": len(range(number, count, len(names)))}
        for number, name in enumerate(names)
    ]
    learner = {"template": {"spec": {"containers": [container]}}}
    name = re.sub("[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    metadata = {"name": name[:NAME_CHARACTERS_MAX].strip("-") or "script"}
    spec = {"steps": steps, "learner": learner, "regions": spread}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def with_gpus(document: Document, count: int) -> Document:
    """Every learner asks for so many GPUs; 0: it sees none."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    _limit(_learner(spec), count)
    for region in spec["regions"]:
        own = region.get("podOverrides") or {}
        if own.get("resources"):
            _limit(own, count)
    return changed


def with_processes(document: Document, count: int) -> Document:
    """Every learner becomes so many processes of its command; raises SpecError if it cannot."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    container = _learner(spec)
    overrides = [region.get("podOverrides") or {} for region in spec["regions"]]
    for region, own in zip(spec["regions"], overrides, strict=True):
        if own.get("command"):
            field = f"spec.regions[{region['name']}].podOverrides"
            own["command"] = launched(own["command"], count, field)
        if own.get("env"):
            own["env"] = _without_number(own)
    given = container.get("command") or []
    used = given or not all(own.get("command") for own in overrides)
    if used and (words := launched(given, count, "spec.learner.template")):
        container["command"] = words
    number = {"name": Torchrun.PROCESSES, "value": str(count)}
    container["env"] = [*_without_number(container), number]
    return changed


def launched(command: Sequence[str], count: int, field: str) -> list[str]:
    """The command for `count` processes; SpecError if it has another launcher, or says a number."""
    flag, words = "--processes-per-learner", list(command)
    if is_launched(words):
        options = words[: len(words) - len(within(words))]
        if any(word.replace("_", "-").startswith("--nproc") for word in options):
            problem = f"the command of {field} has --nproc-per-node itself"
            raise SpecError(flag, problem, "leave one of them out")
        return words
    if count == 1:
        return words
    if has_launcher(words):
        problem = f"the command of {field} has a launcher of its own, {words[0]}"
        remedy = "put this in its place: command: [atoll-worker, launch, --, train.py]"
        raise SpecError(flag, problem, remedy)
    return [*LAUNCHER, DASHES, *(words or ("python3", *TRAIN))]


def _without_number(container: Document) -> list[Document]:
    return [dict(x) for x in container.get("env") or () if x.get("name") != Torchrun.PROCESSES]


def with_folders(document: Document, folder: Path) -> Document:
    """Make relative working folders absolute; what has a command or arguments runs in `folder`."""
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


def kept_manifest(text: str, document: Document, command: Sequence[str], out: Path) -> str:
    """manifest.yaml of a run folder: `text`, comments and all, with `document` for its job."""
    text = with_document(text, document)
    if text.startswith(HEADER):
        return text
    ran = " ".join(shlex.join(["atoll", "run", *command]).splitlines())
    return f"{HEADER}:\n#   {ran}{NOTES.format(file=out / 'manifest.yaml')}{text}"


def with_document(text: str, document: Document) -> str:
    """The text with this document for its job; the lines of comment at its head stay."""
    documents = [each for each in yaml.safe_load_all(text) if each is not None]
    if document in documents:
        return text
    mine = [each.get("kind") == KIND for each in documents]
    documents[mine.index(True) if any(mine) else 0] = document
    head = takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(head) + yaml.safe_dump_all(documents, sort_keys=False, width=100)


def default_out(name: str, now: float) -> Path:
    """A new run folder below the current one; `now` is in Unix seconds."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    folder = Path("runs") / f"{name}-{moment}"
    number = 2
    while os.path.lexists(folder):
        folder = folder.with_name(f"{name}-{moment}-{number}")
        number += 1
    return folder


def _learner(spec: Document) -> Document:
    place = _made(spec, "learner", "template", "spec")
    place["containers"] = place.get("containers") or [{"name": "learner"}]
    container: Document = place["containers"][0]
    return container


def _limit(container: Document, count: int) -> None:
    _made(container, "resources", "limits")[RESOURCE] = count


def _made(place: Document, *keys: str) -> Document:
    for key in keys:
        place[key] = place.get(key) or {}
        place = place[key]
    return place
