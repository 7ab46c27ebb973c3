"""What the operator has noted in annotations and ConfigMaps, read whatever has become of it.

Whoever may edit what a job owns may spoil a note. So every reader here takes any text and never
raises: what cannot be read counts as not noted. The object's next apply then writes the note as it
has to be and tells so in an Event (`plan.changes.applied`).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from atoll_operator.kube.names import RUN_FILE, Annotation
from atoll_operator.kube.observed.observation import Replaced

NOTHING = "{}"
WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")  # a node's name, or a UID
NUMBER_MAX, DIGITS_MAX = 2**53, 16
STATE = ("folder", "job", "hash")  # of a claim's note (`plan.manifest.restore`)


def document(text: str | None) -> dict[str, Any]:
    """The JSON object that a text holds; empty where it holds none."""
    try:
        found = json.loads(text or NOTHING)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def replaced(text: str | None) -> dict[int, Replaced]:
    """What was replaced, by a pod's index in its workload; the reverse of `of_replaced`."""
    found = {}
    for key, values in document(text).items():
        match values:
            case [count, str(uid), since, recent] if (
                _is_number(_index(key))
                and all(_is_number(each) for each in (count, since, recent))
                and _is_word(uid)
            ):
                found[int(key)] = Replaced(count=count, uid=uid, since=since, recent=recent)
    return found


def of_replaced(given: Mapping[int, Replaced]) -> str:
    return json.dumps({str(key): list(astuple(given[key])) for key in sorted(given)})


def suspects(text: str | None) -> dict[str, int]:
    """Since when each node is suspected, in UNIX seconds; the reverse of `of_suspects`."""
    return {
        node: since
        for node, since in document(text).items()
        if _is_word(node) and _is_number(since)
    }


def of_suspects(given: Mapping[str, int]) -> str:
    return json.dumps(given, sort_keys=True)


def is_spoilt(raw: Mapping[str, Any]) -> bool:
    found = raw["metadata"].get("annotations") or {}
    counts, nodes, state = map(
        found.get, (Annotation.REPLACED, Annotation.SUSPECTS, Annotation.STATE)
    )
    return (
        (bool(counts) and of_replaced(replaced(counts)) != counts)
        or (bool(nodes) and of_suspects(suspects(nodes)) != nodes)
        or (bool(state) and not states(state))
    )


def states(text: str | None) -> list[dict[str, str]]:
    """The states of which a claim's annotation tells, the latest first (`manifest.restore`)."""
    noted = document(text)
    former = noted.get("former")
    return [
        {name: each[name] for name in STATE}
        for each in (noted, *(former if isinstance(former, list) else ()))
        if isinstance(each, dict) and all(_is_word(each.get(name)) for name in STATE)
    ]


def run_files(configs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The texts of run files by the names of their ConfigMaps; without those that were spoilt."""
    found = {each["metadata"]["name"]: (each.get("data") or {}).get(RUN_FILE) for each in configs}
    return {name: text for name, text in found.items() if text and _lists_regions(document(text))}


def _lists_regions(file: Mapping[str, Any]) -> bool:
    regions = file.get("regions", [])
    return (
        bool(file)
        and isinstance(regions, list)
        and all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in regions)
    )


def _index(key: str) -> int | None:
    return int(key) if key.isascii() and key.isdigit() and len(key) < DIGITS_MAX else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NUMBER_MAX


def _is_word(value: object) -> bool:
    return isinstance(value, str) and WORD.fullmatch(value) is not None
