"""`atoll-worker module:function [arguments]`: runs a training function with a process' duties."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, log, import, call; returns what the process should exit with (exits.ExitCode).

    The function finds its arguments in `sys.argv` and may return an exit code. In a job, the
    transport process starts first, so that it is ready when the module has imported torch.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    allocator.tune()  # before torch is imported
    logs.configure()
    import structlog

    log = structlog.get_logger()
    try:
        if Env.RUN_FILE in os.environ:
            process.prepare()
        function = target(given)
        sys.argv = given
        return as_exit_code(function())
    except SpecError as error:
        log.error("bad input", field=error.field, problem=error.problem, remedy=error.remedy)
        return ExitCode.BAD_INPUT
    except Exception as error:
        code = getattr(error, "exit_code", None)  # errors.LearnerError: not imported, for torch
        if isinstance(code, int):
            log.error("ended", exit_code=code, reason=str(error))
            return code
        log.exception("the function failed")
        return ExitCode.BUG
    finally:
        process.discard()  # what no Learner or Observer has taken


def target(given: Sequence[str]) -> Callable[[], object]:
    """The function that MODULE:FUNCTION names; modules of the working folder are found first."""
    module_name, colon, function_name = given[0].partition(":") if given else ("", "", "")
    if not (module_name and colon and function_name):
        raise SpecError("command", "names no function", f"use {USAGE}")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module's own import
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
    """None and what is no number mean that all went well."""
    return returned if type(returned) is int else ExitCode.FINAL


if __name__ == "__main__":
    sys.exit(main())
