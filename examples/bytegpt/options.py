"""Command-line options from a dataclass; wrong ones raise SpecError, as wrong manifests do.

argparse would exit with 2, which means nothing in a job; SpecError becomes 64, "bad input".
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from atoll import SpecError

Options = TypeVar("Options")


def option(default: Any, description: str) -> Any:
    """A field of an options dataclass, with its default and its line of help."""
    return dataclasses.field(default=default, metadata={"help": description})


def parse(kind: type[Options], arguments: Sequence[str], program: str) -> Options:
    """An instance of the dataclass `kind`; `batch_size: int` is `--batch-size N`.

    Fields are int, float, str or tuple[str, ...] (one or more words); one without a default is a
    positional argument. Raises SpecError, with `program` as the field, for anything else.
    """
    parser = Parser(prog=program, description=(kind.__doc__ or "").split("\n", maxsplit=1)[0])
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        positional = field.default is dataclasses.MISSING
        name = field.name if positional else f"--{field.name.replace('_', '-')}"
        several: dict[str, Any] = {"nargs": "+"} if get_args(hints[field.name]) else {}
        default: dict[str, Any] = {} if positional else {"default": field.default}
        parser.add_argument(
            name,
            type=str if several else hints[field.name],
            help=f"{field.metadata.get('help', '')} [%(default)s]".strip(),
            **several,
            **default,
        )
    values = vars(parser.parse_args(list(arguments)))
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises SpecError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise what was wrong as a SpecError; argparse calls it."""
        raise SpecError(self.prog, message, f"see {self.prog} --help")
