"""Rule 33: transfers that come in parts."""

from sim.watch import Watcher


class PartsChecker(Watcher):
    """Rule 33: what counts as whole has all its parts, and they are of one capture or version."""

    rule = "33"

    def arrived(self, whole: bool) -> None:
        self.require(whole, "a transfer lacks a part, or has parts of two")
