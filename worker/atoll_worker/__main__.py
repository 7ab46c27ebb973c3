"""`atoll-worker MODULE:FUNCTION [arguments]`: runs a training function as a process of a job.

A script needs no runner: it may call Learner itself. What the runner adds is what every process of
a job should do, and what is easy to forget:

- the memory allocator is tuned before torch is imported (page faults cost more than the copies);
- the transport process is started before the module is imported, so that both start side by side;
- logs are lines of JSON on standard output, as those of the syncer and the operator;
- the exit code says why the process ended, so that whatever started it knows whether to start it
  again: 0 when the function returns, 64 for bad input (SpecError), the error's own code for a
  LearnerError (65, 75, 77), 70 for any other exception.

`atoll-worker launch -- SCRIPT.py [arguments]` starts a learner of several processes instead
(`atoll_worker.launcher`).
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from atoll_protos import allocator, logs
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_worker.training import process

USAGE = "atoll-worker MODULE:FUNCTION [arguments of the function]"
LAUNCH = "launch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the function that the arguments name; return what the process should exit with.

    `arguments` are the command line's by default: MODULE:FUNCTION, then those of the function,
    which finds them in `sys.argv[1:]`. If the function returns an int, that is the exit code.
    After the word `launch` they are those of the launcher.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    allocator.tune()  # before torch is imported
    logs.configure()
    import structlog

    log = structlog.get_logger()
    try:
        if given[:1] == [LAUNCH]:
            from atoll_worker.launcher.health import answer_probes

            answer_probes(os.environ)  # before torch is imported
            from atoll_worker.launcher import command

            command.main(given[1:])  # which ends this process
        if Env.RUN_FILE in os.environ:
            process.prepare()
        function = target(given)
        sys.argv = given
        return as_exit_code(function())
    except SpecError as error:
        log.error("bad input", field=error.field, problem=error.problem, remedy=error.remedy)
        return ExitCode.BAD_INPUT
    except Exception as error:
        # A LearnerError has an exit code. The class is not imported here: it would import torch,
        # also for a function that never uses it.
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            log.error("ended", exit_code=code, reason=str(error))
            return code
        log.exception("the function failed")
        return ExitCode.BUG
    finally:
        process.discard()  # what no Learner or Observer has taken


def target(given: Sequence[str]) -> Callable[[], object]:
    """The function that MODULE:FUNCTION names; modules of the working folder are found first.

    Raises SpecError if there is no such module or function. An error inside the module's own
    imports is not bad input of ours, and passes through.
    """
    module_name, colon, function_name = given[0].partition(":") if given else ("", "", "")
    if not (module_name and colon and function_name):
        raise SpecError("command", "names no function", f"use {USAGE}")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the named one imports is missing
        raise SpecError(
            "command",
            f"there is no module {module_name}",
            "start in the folder that holds it, or install it into the image",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError("command", f"{module_name} has no function {function_name}", f"use {USAGE}")
    return function  # type: ignore[no-any-return]


def as_exit_code(returned: object) -> int:
    """The exit code for what the function returned: an int as it is, 0 for anything else."""
    return returned if type(returned) is int else ExitCode.FINAL


if __name__ == "__main__":
    sys.exit(main())
