"""The run file's wire types as the protocol's encodings."""

from collections.abc import Mapping
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.run import Wire

ENCODINGS: Final[Mapping[Wire, pb.Encoding]] = {
    Wire.F32: pb.F32,
    Wire.BF16: pb.BF16,
    Wire.INT8: pb.INT8,
    Wire.INT4: pb.INT4,
}
