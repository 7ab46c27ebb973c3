"""The user's errors: what was wrong, where, and what to do about it."""


class SpecError(Exception):
    """Bad input, which only the user can fix. The text is one line: `field: problem; remedy`."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field, self.problem, self.remedy = field, problem, remedy

    def __reduce__(self) -> tuple[type["SpecError"], tuple[str, str, str]]:
        return SpecError, (self.field, self.problem, self.remedy)  # between processes


class AwayError(SpecError):
    """What was asked does not answer now, or has no room; it may later."""


def require(holds: bool, field: str, problem: str, remedy: str) -> None:
    if not holds:
        raise SpecError(field, problem, remedy)
