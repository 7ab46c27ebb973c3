"""The last words of a process: why it ended, in one line, from the end of what it has printed.

The text is the end of a log, or the message that a kubelet keeps of a container (its last 80 lines
or 2048 bytes), so its beginning may be missing. The last line is rarely the reason. So every line
is read as one of these:

    traceback    frames and the line with the exception behind them. The exception is the reason,
                 the last frame outside of libraries is its place in the user's code
    JSON         a line of a program of Atoll: with `problem` and `remedy`, with an exception, or
                 with the level error it is a reason; with another level it is none
    fault        "Fatal Python error" with the frames behind it, the newest first, and what C++ says
                 of an exception that nobody has caught
    aside        a traceback behind "Exception ignored in", "Exception in thread" and the like:
                 it ends no process
    wrapper      the traceback of a launcher (torchrun, accelerate), which says only that the
                 script has failed
    noise        progress bars, warnings, indented lines
    other        any other line; `sys.exit("words")` prints such a one

The last reason wins; then the last other line; then wrappers, asides and noise. In a chain of
exceptions, and in a traceback that an exception quotes, the last one says most.
"""

import contextlib
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from atoll_protos import documents

CHARACTERS_MAX: Final = 400  # of the reason
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
TITLE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?::|$)")  # of an exception
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and movements of a terminal
RANK = re.compile(r"^(?:\[(?:rank|default)?\d+\]:\s?)+")  # before lines of one process of several
GROUP = re.compile(r"^\s+[|+] ?(?:-+ \S+ -+)?")  # before every line of an ExceptionGroup
ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")  # of an object: another one at every start
ASIDE = re.compile(
    r"^(?:Exception ignored (?:in|on)|Exception in thread|Error in atexit|--- Logging error)"
)
WRAPPER = re.compile(r"^(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException)\b")
OURS = re.compile(r"^(?:atoll_(?:protos|worker)\.(?:\w+\.)*)?(?:SpecError|LearnerError): ")
NOTE = re.compile(r"^atoll: (?=ranks? \d)")  # of a Learner at somebody else's error
FATAL = re.compile(r"^Fatal Python error: |^\s+what\(\): ")
FAULTS: Final = ("Fatal Python error: ", "what(): ")
NEWEST_FIRST = "(most recent call first)"
INTERRUPT = re.compile(r"^KeyboardInterrupt\b")
NOISE = re.compile(
    r"""\d+%\||\bit/s\]|\bs/it\]|\[\d+:\d+<       # progress bars
    |^\S*:\d+:\ \w*Warning:|^\w*Warning:           # warnings of Python
    |^\[?[WI]\d{3,4}\s|^wandb:\ |\[info\s*\]       # log lines of libraries, no errors
    """,
    re.VERBOSE,
)
NOT_THE_USERS: Final = (  # files of libraries, and of Atoll in a checkout
    *("site-packages/", "dist-packages/", "/lib/python3", "/lib64/python3", "<"),
    *("/atoll_worker/", "/atoll_protos/", "/worker/atoll/", "/atoll_integrations/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Why a process ended; all empty if it printed nothing."""

    text: str = ""
    where: str = ""  # FILE:LINE of the user's code

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text

    def same_as(self, other: "LastWords") -> bool:
        """Whether both say the same, apart from addresses of objects. Empty words say nothing."""
        mine, theirs = (ADDRESS.sub("", str(each)) for each in (self, other))
        return bool(self.text) and mine == theirs


_Kind = Enum("_Kind", ["REASON", "OTHER", "WRAPPER", "ASIDE", "NOISE"])  # the best first


Found = dict[_Kind, LastWords]  # the newest words of each kind
NOTHING: Final = LastWords()


def last_words(text: str) -> LastWords:
    lines = [line for part in re.split(r"[\r\n]+", text) if (line := _plain(part))]
    found: Found = {}
    at = 0
    while at < len(lines):
        if FRAME.match(lines[at]):
            at = _traceback(lines, at, found)
        else:
            _line(lines[at], found)
            at += 1
    return next((found[kind] for kind in _Kind if kind in found), NOTHING)


def _plain(line: str) -> str:
    """Return the line as a terminal shows it, without what several processes put before it."""
    line = RANK.sub("", CODES.sub("", line)).rstrip()
    bare = GROUP.sub("", line)
    return bare if bare != line and (FRAME.match(bare) or TITLE.match(bare)) else line


def _traceback(lines: list[str], at: int, found: Found) -> int:
    head = lines[max(0, at - 2) : at]
    frames: list[tuple[str, str]] = []
    while at < len(lines) and lines[at][0].isspace():
        if frame := FRAME.match(lines[at]):
            frames.append((frame["file"], frame["line"]))
        at += 1
    if head and head[-1].rstrip(":").endswith(NEWEST_FIRST):  # of a fault, or of another thread
        reason = found.get(_Kind.REASON, NOTHING)
        if reason.text.startswith(FAULTS) and head[-1].startswith("Current thread"):
            found[_Kind.REASON] = replace(reason, where=_place(frames[::-1]))
        return at
    if at == len(lines):  # cut short by a kill
        return at
    title = lines[at].strip()
    if title.endswith(":") and at + 1 < len(lines):  # the message is on the lines that follow
        title = f"{title} {lines[at + 1].strip()}"
        if not FRAME.match(lines[at + 1]):
            at += 1
    words = LastWords(text=_short(OURS.sub("", title)), where=_place(frames))
    kind = _Kind.WRAPPER if WRAPPER.match(title) else _Kind.REASON
    if any(map(ASIDE.match, head)) or INTERRUPT.match(title):
        kind = _Kind.ASIDE
    found[kind] = words
    return at + 1


def _line(line: str, found: Found) -> None:
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            _json(documents.mapping(line), line, found)
            return
    words = LastWords(text=_short(OURS.sub("", line.strip())))
    reason = found.get(_Kind.REASON, NOTHING)
    told = reason.text.startswith(FAULTS[1])
    if OURS.match(line) or (FATAL.match(line) and not told):
        found[_Kind.REASON] = words  # of a script that a SpecError or a fault has ended
    elif reason.text and NOTE.match(line):
        text = _short(f"{NOTE.sub('', line)}: {reason.text}")
        found[_Kind.REASON] = replace(reason, text=text)
    elif line[0].isspace() or NOISE.search(line) or line.startswith("Traceback (most recent"):
        found[_Kind.NOISE] = words
    else:
        found[_Kind.OTHER] = words


def _json(value: dict[str, Any], line: str, found: Found) -> None:
    if {"field", "problem", "remedy"} <= value.keys():
        said = f"{value['field']}: {value['problem']}; {value['remedy']}"
        found[_Kind.REASON] = LastWords(text=_short(said))
    elif value.get("exception"):
        found[_Kind.REASON] = last_words(str(value["exception"]))
    else:
        lines = str(value.get("reason") or value.get("event") or line).strip().splitlines()
        level = value.get("level")
        kind = _Kind.NOISE if "level" in value else _Kind.OTHER
        kind = _Kind.REASON if level in ("error", "critical") else kind
        found[kind] = LastWords(text=_short(lines[-1] if lines else line))


def _place(frames: list[tuple[str, str]]) -> str:
    own = [frame for frame in frames if not any(part in frame[0] for part in NOT_THE_USERS)]
    return ":".join((own or frames)[-1])


def _short(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 3]}..."
