"""A row for each machine of `atoll serve`, for `atoll top` and the live table; pure.

heard       how long ago it has asked how the job stands, which it does every 2 s
round trip  of a call between it and the server, the least of the last few; with what both compute
up, down    from it to the shards, and back: the mean of the last 10 s, and all bytes so far
cost        of these bytes, at the price of the region that they leave
"""

from collections.abc import Sequence

from rich import filesize

from atoll_operator.local.progress.machines import ShownMachine
from atoll_operator.local.show.status_text import duration

WHO = ("MACHINE", "REGION", "ADDRESS", "HEARD", "ROUND TRIP")
COLUMNS = (*WHO, "UP NOW", "DOWN NOW", "UP", "DOWN")
NOTHING = "-"


def machine_rows(machines: Sequence[ShownMachine], now: float) -> list[list[str]]:
    """`now` in UNIX seconds. With prices a last column is what it costs."""
    prices = any(each.cost is not None for each in machines)
    rows = [[*COLUMNS, *(["COST"] if prices else [])]]
    for each in machines:
        rows.append([*_row(each, now), *([money(each.cost)] if prices else [])])
    if len(machines) > 1:
        up, down = (sum(x.up_bytes for x in machines), sum(x.down_bytes for x in machines))
        cost = sum(each.cost or 0.0 for each in machines)
        empty = [NOTHING] * (len(COLUMNS) - 3)
        total = ["all", *empty, filesize.decimal(up), filesize.decimal(down)]
        rows.append([*total, *([money(cost)] if prices else [])])
    return rows


def of_slots(machines: Sequence[ShownMachine]) -> dict[str, str]:
    """The machine of each slot that has one."""
    return {slot: each.name for each in machines for slot in each.slots}


def money(amount: float | None) -> str:
    return NOTHING if amount is None else f"{amount:,.2f}"


def _row(each: ShownMachine, now: float) -> list[str]:
    return [
        each.name,
        each.region,
        each.address or NOTHING,
        _heard(each, now),
        f"{1000 * each.round_trip_seconds:.3g} ms" if each.round_trip_seconds else NOTHING,
        _rate(each.up_rate),
        _rate(each.down_rate),
        filesize.decimal(each.up_bytes),
        filesize.decimal(each.down_bytes),
    ]


def _heard(each: ShownMachine, now: float) -> str:
    if each.revoked:
        return "revoked"
    return f"{duration(now - each.heard_at)} ago" if each.heard_at else "never"


def _rate(bits: float | None) -> str:
    return NOTHING if bits is None else f"{bits / 1e6:.2f} Mbit/s"
