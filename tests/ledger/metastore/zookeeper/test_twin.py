"""Random transactions on ZooKeeper and the memory tree lead to the same errors and trees."""

from __future__ import annotations

import random

import pytest

from ledger.errors import LedgerError
from ledger.metastore import open_store
from ledger.metastore.base import Change, MetadataStore, Node
from ledger.metastore.memory import MemoryTree, _Session
from tests.effort import scaled

from ..test_twins import some_change

pytestmark = pytest.mark.zookeeper
STEPS = scaled(ci=100, night=1000)
SESSION_MS = 20_000


@pytest.mark.parametrize("seed", range(2))
async def test_zookeeper_and_memory_return_the_same_results(seed: int, zookeeper_uri: str) -> None:
    rng = random.Random(seed)
    tree, session = MemoryTree(), _Session()
    kinds: set[str] = set()
    failed = 0
    async with open_store(zookeeper_uri, session_timeout_ms=SESSION_MS, may_create=True) as witness:
        for _ in range(10):
            async with open_store(
                zookeeper_uri, session_timeout_ms=SESSION_MS, may_create=True
            ) as store:
                for _ in range(STEPS // 10):
                    whole = _whole(tree)
                    changes = _some_changes(rng, whole)
                    answer = _try_memory(tree, changes, session)
                    assert answer == await _try_zookeeper(store, changes), changes
                    failed += answer is not None
                    kinds |= {type(change).__name__ for change in changes if answer is None}
                    assert await _seen(store) == _whole(tree)
            tree.drop_ephemerals(session)
            assert await _seen(witness) == _whole(tree)
    assert failed > 10, "the transactions no longer include failures"
    assert kinds == {"Create", "Put", "Delete", "Check"}, (
        f"the transactions no longer vary: {kinds}"
    )


def _some_changes(rng: random.Random, whole: dict[str, tuple[bytes, int]]) -> list[Change]:
    nodes: dict[str, Node | None] = {p: Node(d, v, 0) for p, (d, v) in whole.items()}
    changes = [some_change(rng, nodes) for _ in range(rng.choice((1, 1, 2, 3)))]
    # The value of a root that does not exist yet may differ between drivers.
    return [change for change in changes if change.path != "/"]


def _try_memory(
    tree: MemoryTree, changes: list[Change], session: _Session
) -> type[LedgerError] | None:
    try:
        tree.apply(changes, session, 0)
    except LedgerError as error:
        return type(error)
    return None


async def _try_zookeeper(store: MetadataStore, changes: list[Change]) -> type[LedgerError] | None:
    try:
        await store.transaction(changes)
    except LedgerError as error:
        return type(error)
    return None


def _whole(tree: MemoryTree, path: str = "/") -> dict[str, tuple[bytes, int]]:
    node = tree.get(path)
    assert node is not None
    found = {path: (node.data, node.version)}
    for name in tree.children(path):
        found |= _whole(tree, f"{path.rstrip('/')}/{name}")
    return found


async def _seen(store: MetadataStore, path: str = "/") -> dict[str, tuple[bytes, int]]:
    node = await store.get(path)
    found = {path: (node.data, node.version)}
    for name in await store.children(path):
        found |= await _seen(store, f"{path.rstrip('/')}/{name}")
    return found
