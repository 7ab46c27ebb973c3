"""The last words of a process: why it ended, in one line, from the end of what it has printed.

Theory of operation
-------------------
The text is the end of a log, or the message that a kubelet keeps of a container (its last 80 lines
or 2048 bytes), so its beginning may be missing. The last line is rarely the reason. Behind it come
warnings of processes that are torn down, progress bars, lines of the transport process, tracebacks
of destructors. So every line is read as one of these:

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
exceptions, and in a traceback that an exception quotes (workers of a DataLoader), the last one is
the one that says most.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

CHARACTERS_MAX: Final = 400  # of the reason
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
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
LIBRARIES: Final = ("site-packages/", "dist-packages/", "/lib/python3", "/lib64/python3", "<")
PACKAGES: Final = ("/atoll_worker/", "/atoll_protos/", "/worker/atoll/")  # in a checkout


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


NOTHING: Final = LastWords()


@dataclass(slots=True)
class _Found:
    """The newest words of each kind, the best kind first."""

    reason: LastWords | None = None
    other: LastWords | None = None
    wrapper: LastWords | None = None
    aside: LastWords | None = None
    noise: LastWords | None = None

    def best(self) -> LastWords:
        kinds = (self.reason, self.other, self.wrapper, self.aside, self.noise)
        return next((each for each in kinds if each is not None), NOTHING)


def last_words(text: str) -> LastWords:
    """Why a process ended that has printed this text; see the module."""
    lines = [_plain(line) for line in re.split(r"[\r\n]+", text)]
    found = _Found()
    at = 0
    while at < len(lines):
        line = lines[at]
        if FRAME.match(line):
            at = _traceback(lines, at, found)
            continue
        if line.strip():
            _line(line, found)
        at += 1
    return found.best()


def _plain(line: str) -> str:
    """The line as a terminal would show it, without what several processes put before it."""
    line = RANK.sub("", CODES.sub("", line)).rstrip()
    bare = GROUP.sub("", line)
    return bare if bare != line and (FRAME.match(bare) or _is_title(bare)) else line


def _is_title(line: str) -> bool:
    return bool(re.match(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?::|$)", line))


def _traceback(lines: list[str], at: int, found: _Found) -> int:
    """Read the traceback whose first frame is at this line; returns where the text goes on."""
    head = [line for line in lines[max(0, at - 4) : at] if line.strip()]
    frames: list[tuple[str, str]] = []
    while at < len(lines) and (not lines[at] or lines[at][0].isspace()):
        if frame := FRAME.match(lines[at]):
            frames.append((frame["file"], frame["line"]))
        at += 1
    if head and head[-1].rstrip(":").endswith(NEWEST_FIRST):  # of a fault, or of another thread
        fault = found.reason is not None and found.reason.text.startswith(FAULTS)
        if found.reason and fault and head[-1].startswith("Current thread"):
            found.reason = LastWords(text=found.reason.text, where=_place(frames[::-1]))
        return at
    if at == len(lines):  # cut short by a kill
        return at
    title = lines[at].strip()
    if title.endswith(":") and at + 1 < len(lines):  # the message is on the lines that follow
        title = f"{title} {lines[at + 1].strip()}"
        if not FRAME.match(lines[at + 1]):
            at += 1
    words = LastWords(text=_short(OURS.sub("", title)), where=_place(frames))
    if any(ASIDE.match(line) for line in head[-2:]) or INTERRUPT.match(title):
        found.aside = words
    elif WRAPPER.match(title):
        found.wrapper = words
    else:
        found.reason = words
    return at + 1


def _line(line: str, found: _Found) -> None:
    """Read a line that belongs to no traceback."""
    if line.startswith("{"):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            _json(value, line, found)
            return
    words = LastWords(text=_short(OURS.sub("", line.strip())))
    told = found.reason is not None and found.reason.text.startswith(FAULTS[1])
    if OURS.match(line) or (FATAL.match(line) and not told):
        found.reason = words  # of a script that a SpecError or a fault has ended
    elif found.reason is not None and NOTE.match(line):
        text = f"{NOTE.sub('', line)}: {found.reason.text}"
        found.reason = LastWords(text=_short(text), where=found.reason.where)
    elif line[0].isspace() or NOISE.search(line) or line.startswith("Traceback (most recent"):
        found.noise = words
    else:
        found.other = words


def _json(value: dict[str, Any], line: str, found: _Found) -> None:
    """Read a line of a structured log."""
    if {"field", "problem", "remedy"} <= value.keys():
        found.reason = LastWords(
            text=_short(f"{value['field']}: {value['problem']}; {value['remedy']}")
        )
    elif value.get("exception"):
        found.reason = last_words(str(value["exception"]))
    else:
        said = str(value.get("reason") or value.get("event") or line).strip().splitlines()
        words = LastWords(text=_short(said[-1] if said else line))
        if value.get("level") in ("error", "critical"):
            found.reason = words
        elif "level" in value:
            found.noise = words
        else:
            found.other = words


def _place(frames: list[tuple[str, str]]) -> str:
    """The last frame outside of libraries, or the last of all."""
    own = [each for each in frames if not any(part in each[0] for part in LIBRARIES + PACKAGES)]
    return ":".join((own or frames)[-1])


def _short(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 3]}..."
