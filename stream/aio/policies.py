"""stream.retention.policies for asyncio.

Generated from stream/retention/policies.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from typing import Unpack

from stream.aio.client import LedgerClient
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.retention.policies import NamespaceSettings
from stream.retention.policies import create_namespace as trio_create_namespace
from stream.retention.policies import delete_namespace as trio_delete_namespace
from stream.retention.policies import list_namespaces as trio_list_namespaces


async def create_namespace(
    client: LedgerClient, name: str, **settings: Unpack[NamespaceSettings]
) -> NamespaceMetadata:
    """Creates a namespace; settings that are left out get their defaults.

    Raises NamespaceExists, InvalidArgument, MetadataUnavailable.
    """
    return await client._bridge.call(lambda: trio_create_namespace(client._inner, name, **settings))


async def list_namespaces(client: LedgerClient) -> list[str]:
    """Returns the names, sorted. Raises MetadataUnavailable."""
    return await client._bridge.call(lambda: trio_list_namespaces(client._inner))


async def delete_namespace(client: LedgerClient, name: str, *, purge: bool = False) -> None:
    """Deletes a namespace without streams, and what was granted on it by name.

    With `purge`, streams in its trash are deleted permanently first. Raises NoSuchNamespace;
    NamespaceNotEmpty while it has streams, or without `purge` anything in its trash; Unauthorized
    if this client may not see what was granted.
    """
    await client._bridge.call(lambda: trio_delete_namespace(client._inner, name, purge=purge))
