"""`atoll-worker MODULE:FUNCTION [arguments]`: runs a training function as a process of a job.

A script may also call Learner itself. The runner adds that the allocator is tuned before torch is
imported (page faults cost more than the copies), logs are JSON, and the exit code says whether
another start can help.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from atoll_protos import allocator, logs
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode

USAGE = "atoll-worker MODULE:FUNCTION [arguments of the function]"
HELP = f"""usage: {USAGE}
       atoll-worker launch [OPTIONS of torchrun] -- SCRIPT.py|COMMAND [ARGUMENTS]

Runs a training function, or the ranks of a learner, as a process of a job.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the function that the arguments name; return what the process should exit with.

    That is 64 for a SpecError, the error's own code for a LearnerError (65, 75, 77), 70 for any
    other exception, what the function returns if that is an int, else 0.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return ExitCode.FINAL
    allocator.tune()  # before torch is imported
    logs.configure()
    import structlog

    log = structlog.get_logger()
    try:
        if given[:1] == ["launch"]:
            from atoll_worker.launcher.probes import answer_probes

            answer_probes(os.environ)  # before torch is imported
            from atoll_worker.launcher import launch

            launch.main(given[1:])  # which ends this process
        function = target(given)
        sys.argv = given
        returned = function()
        return returned if type(returned) is int else ExitCode.FINAL
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


def target(given: Sequence[str]) -> Callable[[], object]:
    """Return the function that MODULE:FUNCTION names; the working folder comes first.

    Raises SpecError if there is none. An error inside the module's own imports passes through.
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
        remedy = "start in the folder that holds it, or install it into the image"
        raise SpecError("command", f"there is no module {module_name}", remedy) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError("command", f"{module_name} has no function {function_name}", f"use {USAGE}")
    return function  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
