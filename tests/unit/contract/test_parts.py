"""Parts of a slice: they tile its bytes, and an encoded part is a piece of the encoded slice."""

from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import BLOCK_MAX, CODECS, Codec, Form
from atoll_protos.transfer.division import ALL, LANES_MAX, Share, part_edges, part_spans, span_bytes

codecs = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.wire)
sizes = st.integers(0, 4000)
numbers = st.integers(1, 20)


@given(sizes, sizes, numbers)
def test_no_block_of_a_codec_lies_in_two_parts_and_parts_are_equal(
    exact: int, coded: int, parts: int
) -> None:
    edges = part_edges(Form(exact, coded), parts)
    assert (edges[0], edges[-1]) == (0, exact + coded)
    assert list(edges) == sorted(edges)
    assert all((edge - exact) % BLOCK_MAX == 0 for edge in edges[:-1] if edge > exact)
    equal = (exact + coded) / parts
    assert all(abs(stop - start - equal) <= BLOCK_MAX for start, stop in pairwise(edges))


@codecs
@given(exact=sizes, coded=sizes, parts=st.integers(1, LANES_MAX))
@settings(max_examples=25)
def test_the_bytes_of_all_parts_tile_those_of_the_slice(
    codec: Codec, exact: int, coded: int, parts: int
) -> None:
    form = Form(exact, coded)
    spans = part_spans(form, codec.encoding, parts)
    assert len(spans) == parts
    taken = sorted((s for part in spans for s in part), key=lambda span: span.start)
    assert all(span for span in taken)
    assert all(one.stop == other.start for one, other in pairwise(taken))
    total = form.byte_count(codec.encoding)
    assert (taken[0].start, taken[-1].stop) == (0, total) if total else not taken


@codecs
@given(exact=sizes, coded=sizes, parts=numbers)
@settings(max_examples=25)
def test_an_encoded_part_is_a_piece_of_the_encoded_slice_rule_32(
    codec: Codec, exact: int, coded: int, parts: int
) -> None:
    form = Form(exact, coded)
    values = np.random.default_rng(exact + coded).standard_normal(form.element_count, np.float32)
    whole = arrays.pack(values, codec.encoding, form)
    spans, edges = part_spans(form, codec.encoding, parts), part_edges(form, parts)
    for of_part, (start, stop) in zip(spans, pairwise(edges), strict=True):
        exact_values = values[start : min(stop, exact)]
        coded_values = values[max(start, exact) : max(stop, exact)]
        alone = [*exact_values.tobytes()]
        alone += [*arrays.encode(coded_values, codec.encoding)]
        assert [byte for span in of_part for byte in whole[span.start : span.stop]] == alone
        own = Form(len(exact_values), len(coded_values))
        assert span_bytes(of_part) == own.byte_count(codec.encoding)


@codecs
@given(exact=sizes, coded=sizes, hosts=st.integers(2, 5), lanes=st.integers(1, 4))
@settings(max_examples=25)
def test_what_a_process_holds_and_encodes_alone_are_its_parts_of_the_encoded_slice_rule_32(
    codec: Codec, exact: int, coded: int, hosts: int, lanes: int
) -> None:
    form, parts = Form(exact, coded), hosts * lanes
    values = np.random.default_rng(exact + coded).standard_normal(form.element_count, np.float32)
    whole = arrays.pack(values, codec.encoding, form)
    expected, edges = part_spans(form, codec.encoding, parts), part_edges(form, hosts)
    for host in range(hosts):
        share = Share(host * lanes, (host + 1) * lanes, parts)
        held = share.elements(form)
        assert (held.start, held.stop) == (edges[host], edges[host + 1])  # however many lanes
        assert share.form(form).element_count == len(held)
        own = arrays.pack(values[held.start : held.stop], codec.encoding, share.form(form))
        for part, spans in enumerate(share.spans(form, codec.encoding)):
            here = expected[part] if part in share.lanes else ()
            assert [*joined(own, spans)] == [*joined(whole, here)]


def joined(data: memoryview, spans: tuple[range, ...]) -> bytes:
    return b"".join(data[span.start : span.stop] for span in spans)


def test_a_process_without_others_holds_whole_slices() -> None:
    form = Form(3, 65)
    assert (ALL.elements(form), ALL.form(form)) == (range(68), form)
    assert Share(0, 3, 3).spans(form, pb.INT8) == part_spans(form, pb.INT8, 3)


def test_one_part_is_the_whole_slice_and_an_unknown_encoding_has_none() -> None:
    assert part_spans(Form(3, 65), pb.INT4, 1) == ((range(Form(3, 65).byte_count(pb.INT4)),),)
    assert part_spans(Form(0, 600), pb.F32, 2) == ((range(1024),), (range(1024, 2400),))
    for parts in (1, 2):
        with pytest.raises(ValueError, match="encoding 9"):
            part_spans(Form(3, 65), cast(pb.Encoding, 9), parts)
