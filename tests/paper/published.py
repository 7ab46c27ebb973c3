"""Tables of the published system and of its predecessors, as numbers, with what they leave open."""

from typing import Final

# 2604.21428: share of the chips' time in which they train, in per cent, by the number of learners
# and of chips; each chip fails once a year. 0 is data-parallel training that is not elastic, 1 the
# elastic one. The parameters of its simulation are not published.
CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
GOODPUT: Final = {
    0: (72, 57, 38, 27, 18),
    1: (88, 80, 69, 58, 40),
    2: (94, 88, 80, 70, 54),
    4: (96, 93, 89, 82, 73),
    8: (98, 96, 94, 88, 80),
    16: (99, 98, 96, 93, 86),
}

# 2604.21428 and its announcement: Gbit/s of a site, data-parallel training and the published
# system. The first pair has 5e9 parameters, steps of 1 s, bf16, P = H = 24 and tau = 2; of the
# second pair, for 8 sites, no setting is published.
PAIR_5B: Final = (104, 1.7)
PAIR_8_SITES: Final = (198, 0.84)

# 2501.18512, Table 4: Gbit/s that reach a compute utilisation, by size and method.
UTILISATIONS: Final = (0.50, 0.80, 0.90, 0.95, 0.99)
METHODS: Final = ("data-parallel", "DiLoCo", "streaming", "overlapped", "overlapped, 4 bits")
TABLE_4: Final = {
    "1B": (
        (86.8, 152.6, 184.2, 222.3, 569.0),
        (1.4, 6.2, 13.3, 23.3, 86.8),
        (1.4, 5.2, 9.1, 16.0, 28.1),
        (1.4, 4.3, 6.2, 9.1, 11.0),
        (0.4, 0.9, 1.7, 2.0, 3.0),
    ),
    "10B": (
        (104.8, 222.3, 222.3, 268.3, 471.5),
        (1.7, 7.5, 16.0, 33.9, 104.8),
        (1.7, 5.2, 9.1, 13.3, 19.3),
        (1.7, 3.6, 5.2, 6.2, 7.5),
        (0.4, 0.9, 1.4, 1.4, 1.7),
    ),
    "100B": (
        (184.2, 323.8, 390.7, 390.7, 471.5),
        (3.0, 11.0, 23.3, 49.4, 184.2),
        (2.4, 6.2, 9.1, 11.0, 19.3),
        (1.7, 3.6, 4.3, 5.2, 5.2),
        (0.5, 0.9, 1.1, 1.1, 1.4),
    ),
}
