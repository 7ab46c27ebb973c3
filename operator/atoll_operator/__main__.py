"""`atoll-operator`: serves DecoupledTrainingJobs of a cluster; settings come from the chart."""

import argparse
import asyncio
import logging
import os
import sys

from atoll_operator.kube.serve import serve
from atoll_operator.kube.settings import from_environment
from atoll_protos import logs
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode


def main() -> None:
    """Exit with a code of exits.ExitCode."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    logs.configure()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(from_environment(os.environ)))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(ExitCode.BAD_INPUT)


if __name__ == "__main__":
    main()
