"""Quantities of Kubernetes ("1500m", "2Gi") as numbers."""

import re
from decimal import Decimal
from typing import Any

QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]+|[numkKMGTPE]?i?)")
TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: Any) -> Decimal | None:
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Decimal(number + suffix)
    if suffix in TWOS:
        return Decimal(number) * (1 << TWOS[suffix])
    return Decimal(number).scaleb(TENS[suffix]) if suffix in TENS else None
