"""The user's errors: what was wrong, where, and what to do about it."""


class SpecError(Exception):
    """Bad input that only its giver can mend; permanent. Text: `field: problem; remedy`."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field, self.problem, self.remedy = field, problem, remedy
