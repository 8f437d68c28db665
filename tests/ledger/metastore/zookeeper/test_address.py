"""Addresses of clusters on ZooKeeper, in our form and in Apache's."""

from __future__ import annotations

import sys

import pytest

from ledger.errors import InvalidArgument
from ledger.metastore import ledgers_root, open_store
from ledger.metastore.zookeeper.address import parse_address
from ledger.shown_text import shown_address


@pytest.mark.parametrize(
    ("uri", "hosts", "chroot", "root", "manager"),
    [
        ("zk://h/ledgers", "h:2181", "", "/ledgers", None),
        ("zk://h1:1,h2:2/a/b/c", "h1:1,h2:2", "/a/b", "/c", None),
        ("zk+hierarchical://h1:2181;h2:2182/ledgers", "h1:2181,h2:2182", "", "/ledgers",
         "hierarchical"),
        ("zk+longhierarchical://h/l/", "h:2181", "", "/l", "longhierarchical"),
        ("zk+flat://h/l", "h:2181", "", "/l", "flat"),
        ("zk+null://h/l", "h:2181", "", "/l", None),
        ("ZK+Hierarchical://h/l", "h:2181", "", "/l", "hierarchical"),
        ("zk://[::1]:2182,[fe80::2]/x/l", "[::1]:2182,[fe80::2]:2181", "/x", "/l", None),
        ("zk://10.0.0.1:65535/my%20ledgers", "10.0.0.1:65535", "", "/my ledgers", None),
    ],
)  # fmt: skip
def test_an_address_names_servers_root_and_ledger_manager(
    uri: str, hosts: str, chroot: str, root: str, manager: str | None
) -> None:
    address = parse_address(uri)
    assert (address.hosts, address.chroot, address.root, address.manager) == (
        hosts,
        chroot,
        root,
        manager,
    )
    assert ledgers_root(uri) == root


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("zk:h/ledgers", "does not start with zk://"),
        ("zk://h:2181", "no path: add the ledgers root"),
        ("zk://h:2181/", "no path"),
        ("zk:///ledgers", "'', which is no host"),
        ("zk://a,,b/ledgers", "'', which is no host"),
        ("zk://a;/ledgers", "'', which is no host"),
        ("zk://:2181/ledgers", "':2181', which is no host"),
        ("zk://a b/ledgers", "'a b', which is no host"),
        ("zk://a..b/ledgers", "'a..b', which is no host"),
        ("zk://[::1/ledgers", "which is no host"),
        ("zk://[no]:1/ledgers", "which is no host"),
        ("zk://::1:2181/ledgers", "IPv6 address goes in brackets"),
        ("zk://h:/ledgers", "port is not in 1..65535"),
        ("zk://h:0/ledgers", "port is not in 1..65535"),
        ("zk://h:65536/ledgers", "port is not in 1..65535"),
        ("zk://h:-1/ledgers", "port is not in 1..65535"),
        ("zk://h:port/ledgers", "port is not in 1..65535"),
        ("zk://user@h:2181/ledgers", "names a user"),
        ("zk://h/a//ledgers", "component ''"),
        ("zk://h/../ledgers", r"component '\.\.'"),
        ("zk://h/%2e/ledgers", r"component '\.'"),
        ("zk://h/a/ledgerstream", "where streams lie"),
        ("zk://h/ledgers?x=1", "which mean nothing here"),
        ("zk+ms://h/ledgers", "manager 'ms', known are hierarchical, longhierarchical, flat, null"),
        ("zk+://h/ledgers", "manager ''"),
    ],
)
async def test_invalid_addresses_are_refused_with_the_reason(uri: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refusal:
        ledgers_root(uri)
    assert shown_address(uri) in str(refusal.value)
    assert "Use zk://HOST:2181" in str(refusal.value)
    with pytest.raises(InvalidArgument, match=message):
        async with open_store(uri, may_create=True):
            raise AssertionError("must not be entered")


def test_other_drivers_keep_ledgers_where_apache_does() -> None:
    assert ledgers_root("sqlite:///var/x.db") == "/ledgers"
    assert ledgers_root("memory:") == "/ledgers"


async def test_without_kazoo_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("ledger.metastore.zookeeper.store") or name.partition(".")[0] == "kazoo":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'ledgerstream\[zookeeper\]'"):
        async with open_store("zk://h/ledgers", may_create=True):
            raise AssertionError("must not be entered")
