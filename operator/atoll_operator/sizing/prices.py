"""What bytes cost that leave a region; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

GIGABYTE: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Money for 10^9 bytes that leave a region, and `other` for regions without a price here."""

    by_region: Mapping[str, float] = field(default_factory=dict)
    other: float | None = None

    def cost(self, region: str, home: str, up_bytes: int, down_bytes: int) -> float | None:
        """Up leaves the region, down that of the shards, `home`; None: no price is known."""
        known = [
            byte_count / GIGABYTE * price
            for where, byte_count in ((region, up_bytes), (home, down_bytes))
            if (price := self.by_region.get(where, self.other)) is not None
        ]
        return sum(known) if known else None


FREE: Final = Prices()
