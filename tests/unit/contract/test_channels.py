"""Both ends of a channel agree on sizes and keepalive; when a server's certificate expires."""

from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TENSORS_MAX
from atoll_protos.network import channels
from atoll_protos.transfer.frames import CHUNK_BYTES, HEADER
from unit.certificate_values import DAY, NOW, authorities, leaf

ENDS = [channels.control_options(), channels.bulk_options(), channels.server_options()]


def test_every_message_that_a_client_may_send_a_server_takes_and_a_frame_fits() -> None:
    server = dict(channels.server_options())
    for options in map(dict, ENDS):
        sent = options["grpc.max_send_message_length"]
        assert sent <= server["grpc.max_receive_message_length"]
        assert server["grpc.max_send_message_length"] >= sent
        assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 20_000
    sizes = dict(channels.bulk_options())
    assert CHUNK_BYTES + HEADER.size <= sizes["grpc.max_receive_message_length"]


def test_the_table_of_the_largest_model_fits_into_a_control_message() -> None:
    name = "model.layers.100.mlp.experts.1000.gate_up_projection.weight_and_some_more_of_it"
    one = pb.Tensor(name=name, shape=[1 << 20, 1 << 20], dtype="bfloat16", merge="mean")
    table = pb.ToShard(model=pb.Model(tensors=[one] * TENSORS_MAX))
    assert table.ByteSize() <= dict(ENDS[0])["grpc.max_send_message_length"]


def test_a_server_allows_pings_as_often_as_its_clients_send_them() -> None:
    """Else it answers with ENHANCE_YOUR_CALM and ends every session."""
    server = dict(channels.server_options())
    for options in map(dict, ENDS[:2]):
        every = options["grpc.keepalive_time_ms"]
        assert server["grpc.http2.min_ping_interval_without_data_ms"] < every
        assert options["grpc.use_local_subchannel_pool"] == 1  # a connection of its own


def test_a_server_tells_when_the_certificate_in_its_folder_expires(tmp_path: Path) -> None:
    issuers = authorities()

    def put(now: float) -> None:
        found = leaf(issuers, now=now)
        (tmp_path / "tls.crt").write_bytes(found.certificate)
        (tmp_path / "tls.key").write_bytes(found.key)
        (tmp_path / "ca.crt").write_bytes(found.authority)

    put(NOW)
    folder = channels.Folder(path=str(tmp_path), clock=lambda: NOW + DAY)
    first = folder.read()
    assert first is not None
    files = channels.ServerFiles(folder, first)
    assert files.expiry() == NOW + 30 * DAY
    put(NOW + DAY)  # renewed, and no handshake since
    assert files.expiry() == NOW + 31 * DAY
    (tmp_path / "tls.crt").write_bytes(b"")  # cannot be used: the one in use still counts
    assert files.expiry() == NOW + 30 * DAY
