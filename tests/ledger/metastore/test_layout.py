"""Layouts: Apache's paths, and LAYOUT nodes that are decoded or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore import ClusterAddress
from ledger.metastore.layout import (
    LEDGER_ID_MAX,
    SHORT_LEDGER_ID_END,
    Layout,
    decode_layout,
    encode_layout,
)

HYBRID, LONG, LEGACY, FLAT = (
    Layout.HIERARCHICAL,
    Layout.LONG_HIERARCHICAL,
    Layout.LEGACY_HIERARCHICAL,
    Layout.FLAT,
)
PACKAGE = b"org.apache.bookkeeper.meta."


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (HYBRID, 0, "/ledgers/00/0000/L0000"),
        (HYBRID, 1, "/ledgers/00/0000/L0001"),
        (HYBRID, 1234567890, "/ledgers/12/3456/L7890"),
        (HYBRID, SHORT_LEDGER_ID_END - 1, "/ledgers/21/4748/L3646"),
        (HYBRID, SHORT_LEDGER_ID_END, "/ledgers/000/0000/0021/4748/L3647"),
        (HYBRID, LEDGER_ID_MAX, "/ledgers/922/3372/0368/5477/L5807"),
        (LONG, 1, "/ledgers/000/0000/0000/0000/L0001"),
        (LONG, LEDGER_ID_MAX, "/ledgers/922/3372/0368/5477/L5807"),
        (LEGACY, SHORT_LEDGER_ID_END, "/ledgers/21/4748/L3647"),
        (FLAT, 1, "/ledgers/L0000000001"),
        (FLAT, LEDGER_ID_MAX, "/ledgers/L9223372036854775807"),
    ],
)
def test_paths_are_those_of_apache(layout: Layout, ledger_id: int, path: str) -> None:
    assert layout.path("/ledgers", ledger_id) == path


@pytest.mark.parametrize("layout", Layout)
def test_impossible_ids_are_refused(layout: Layout) -> None:
    for ledger_id in (-1, layout.ledger_id_max + 1):
        with pytest.raises(InvalidArgument, match=str(ledger_id)):
            layout.path("/ledgers", ledger_id)


@pytest.mark.parametrize("layout", Layout)
def test_a_layout_is_read_as_it_was_written(layout: Layout) -> None:
    assert decode_layout(encode_layout(layout)) is layout


def test_the_bytes_are_apaches() -> None:
    assert encode_layout(LONG) == b"2\n" + PACKAGE + b"LongHierarchicalLedgerManagerFactory:1"


@pytest.mark.parametrize(
    ("data", "layout"),
    [
        (b"2\ndlshade." + PACKAGE + b"HierarchicalLedgerManagerFactory:1", HYBRID),
        (b"2\norg.apache.pulsar.shade." + PACKAGE + b"FlatLedgerManagerFactory:1", FLAT),
        (b"2\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:1", HYBRID),
        (b"2\n" + PACKAGE + b"LegacyHierarchicalLedgerManagerFactory:1\n", LEGACY),
        (b"1\nflat:1", FLAT),
        (b"1\nhierarchical:1", HYBRID),
    ],
)
def test_the_class_counts_and_its_package_does_not(data: bytes, layout: Layout) -> None:
    assert decode_layout(data) is layout


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"2\n" + PACKAGE + b"MSLedgerManagerFactory:1", "MSLedgerManagerFactory"),
        (b"2\n" + PACKAGE + b"HierarchicalLedgerManagerFactory:2", "manager version 2"),
        (b"3\n" + PACKAGE + b"HierarchicalLedgerManagerFactory:1", "format 3"),
        (b"1\nms:1", "ms"),
        (b"2\n" + PACKAGE + b"HierarchicalLedgerManagerFactory", "cannot be read"),
        (b"two\nhierarchical:1", "cannot be read"),
        (b"2\n:1", "cannot be read"),
        (b"2", "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_an_unknown_layout_is_refused_with_its_name(data: bytes, cause: str) -> None:
    with pytest.raises(MetadataCorrupt, match=cause):
        decode_layout(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_layout_or_corrupt(data: bytes) -> None:
    try:
        decode_layout(data)
    except MetadataCorrupt:
        pass


def test_the_cluster_address_may_ask_for_a_layout() -> None:
    def layout_of(uri: str) -> Layout | None:
        return ClusterAddress.parse(uri).layout

    assert layout_of("zk+longhierarchical://a:2181;b:2181/ledgers") is LONG
    assert layout_of("zk+flat://a:2181/ledgers") is FLAT
    for uri in ("zk://a:2181/ledgers", "zk+null://a:2181/ledgers", "sqlite:///c.db", "memory:"):
        assert layout_of(uri) is None
    for unknown in ("ms", "legacyhierarchical"):
        with pytest.raises(InvalidArgument, match=rf"manager '{unknown}', known are .*flat"):
            layout_of(f"zk+{unknown}://a:2181/ledgers")
