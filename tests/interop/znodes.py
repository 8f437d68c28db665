"""Reads the nodes of a cluster in ZooKeeper directly, without a metadata driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ledger.metastore.zookeeper.address import parse_address
from tests.interop.timeouts import PATIENCE_S, SESSION_TIMEOUT_MS

ELECTION = "underreplication/auditorelection"
LOCKS = "underreplication/locks/"


@dataclass(frozen=True, slots=True)
class Znode:
    data: bytes
    is_ephemeral: bool


@contextmanager
def zookeeper_client(uri: str) -> Iterator[KazooClient]:
    """Opens a client whose paths begin at the root of ZooKeeper."""
    client = KazooClient(parse_address(uri).hosts, timeout=SESSION_TIMEOUT_MS / 1000)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def root_of(uri: str) -> str:
    """Returns the path of the ledgers root from the root of ZooKeeper."""
    address = parse_address(uri)
    return address.chroot + address.root


def forget_registration(uri: str, bookie_id: str) -> None:
    """Deletes the registration of a killed bookie, as the end of its session would."""
    with zookeeper_client(uri) as client:
        for path in (f"available/{bookie_id}", f"available/readonly/{bookie_id}"):
            try:
                client.delete(f"{root_of(uri)}/{path}")
            except NoNodeError:
                continue


def forget_healer(uri: str, bookie_id: str, *, other: str | None = None) -> None:
    """Deletes the votes and locks of a killed process of auto-recovery, as the end of its session
    would. Apache's locks name its host: then all locks are deleted but those of the `other`."""
    vote = f'bookieId: "{bookie_id}"\n'.encode()
    lock = f'bookieId: "{other or bookie_id}-'.encode()
    with zookeeper_client(uri) as client:
        for name, node in znodes(uri).items():
            is_vote = name.startswith(f"{ELECTION}/V_") and node.data.startswith(vote)
            is_lock = name.startswith(LOCKS) and node.data.startswith(lock) is (other is None)
            if is_vote or is_lock:
                try:
                    client.delete(f"{root_of(uri)}/{name}")
                except NoNodeError:
                    continue


def znodes(uri: str) -> dict[str, Znode]:
    """Returns all nodes of the ledgers root, by their path from there ("" is the root).

    The tree may change in the meantime: a node that is deleted while it is visited is left out.
    """
    found: dict[str, Znode] = {}

    def visit(client: KazooClient, path: str, name: str) -> None:
        try:
            data, stat = client.get(path)
            children = client.get_children(path)
        except NoNodeError:
            return
        found[name] = Znode(data or b"", stat.ephemeralOwner != 0)
        for child in sorted(children):
            visit(client, f"{path}/{child}", f"{name}/{child}" if name else child)

    with zookeeper_client(uri) as client:
        visit(client, root_of(uri), "")
    return found
