"""Gives the nodes of a cluster that exists the ACLs that new ones get.

A node is changed by a user who has the right to: as long as nodes are open, by any owner. Nodes
that are made or deleted meanwhile are no error. Running it again changes what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import trio
from kazoo import exceptions as zk
from kazoo.client import KazooClient

from ledger.errors import InvalidArgument, MetadataUnavailable
from ledger.metastore.node_kinds import kind_of, make_shared_folders
from ledger.metastore.zookeeper.errors import translate
from ledger.metastore.zookeeper.store import ZooKeeperStore

_AT_ONCE = 64


@dataclass
class AclReport:
    """What was found. `changed` counts nodes by kind, or those that would be changed; `unknown` are
    paths that no release of this kind makes, which are left as they are."""

    nodes: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)


async def apply_acls(store: ZooKeeperStore, *, is_dry_run: bool) -> AclReport:
    """Gives each node of the cluster its ACL, and makes the folders in which clients work. With
    `is_dry_run` it changes nothing.

    Raises InvalidArgument unless the session is the owners', MetadataUnavailable, Unauthorized for
    a node whose ACL may not be changed by this user.
    """
    session = store.session
    if not session.access.is_owner:
        raise InvalidArgument(
            "ACLs are applied by the owners' user. Cure: set zookeeper_acl to the ids of both "
            "users, and zookeeper_credentials_file to the file of the first"
        )
    if not is_dry_run:
        await make_shared_folders(store, session.address.root)
    report = AclReport()
    async with aclosing(_batches(store)) as batches:
        async for paths in batches:
            report.nodes += len(paths)
            async with trio.open_nursery() as nursery:
                for path in paths:
                    nursery.start_soon(_apply, store, path, report, is_dry_run)
    return report


async def _batches(store: ZooKeeperStore) -> AsyncGenerator[Sequence[str], None]:
    """Yields the paths of all nodes, parents first."""
    waiting, batch = [store.session.address.root, "/ledgerstream"], list[str]()
    while waiting:
        path = waiting.pop()
        batch.append(path)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
        waiting += [f"{path}/{name}" for name in await store.children(path)]
    yield batch


async def _apply(store: ZooKeeperStore, path: str, report: AclReport, is_dry_run: bool) -> None:
    session = store.session
    kind = kind_of(path, session.address.root)
    if kind is None:
        report.unknown.append(path)
        return
    whole = store.whole_path(path)
    wanted = session.acl_of(whole)
    try:
        found, stat = await session.call(
            partial(KazooClient.get_acls_async, path=whole), f"look at {path}", is_change=False
        )
        if set(found) == set(wanted or ()):
            return
        if not is_dry_run:
            change = partial(
                KazooClient.set_acls_async, path=whole, acls=wanted, version=stat.aversion
            )
            await session.call(change, f"set the ACL of {path}", is_change=True)
    except zk.NoNodeError:
        return  # it was deleted meanwhile
    except zk.BadVersionError as error:
        raise MetadataUnavailable(
            f"another process changed the ACL of {path} meanwhile. Cure: run it again"
        ) from error
    except zk.ZookeeperError as error:
        raise translate(error, path) from error
    report.changed[kind.name] += 1
