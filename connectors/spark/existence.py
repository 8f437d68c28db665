"""Checks on the driver, before any task starts, that the named streams exist.

A missing stream is reported with similar names. A cluster that does not answer is reported with
its address and the time spent. Reads metadata only; must never create anything.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence

import trio

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.options.options import Selection
from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataUnavailable, NoSuchCluster
from stream.core.names import parse_partition
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchNamespace, NoSuchStream
from stream.store.streams import StreamStore

ANSWER_TIMEOUT_S = 20.0
_SHOWN_MAX = 5


def check_exist(
    cluster: ClusterAccess | str,
    selection: Selection,
    *,
    may_be_none: bool = True,
    may_be_gone: bool = False,
) -> None:
    """Checks that the selected streams exist.

    Raises NoSuchCluster, NoSuchNamespace, NoSuchStream, MetadataUnavailable.

    Args:
        may_be_none: whether a pattern may match no stream.
        may_be_gone: whether streams that are named may be missing.
    """
    begun_s = time.monotonic()
    try:
        cached_cluster(cluster).run(_check, selection, may_be_none, may_be_gone)
    except trio.TooSlowError:
        raise MetadataUnavailable(
            f"cluster {cluster}: its metadata store accepted the connection and did not answer "
            f"within {ANSWER_TIMEOUT_S:g} s. Cure: check its log and the network"
        ) from None
    except NoSuchCluster as error:
        raise NoSuchCluster(
            f"{error}. Executors on other machines need an address like zk://host:2181/ledgers"
        ) from None
    except MetadataUnavailable as error:
        waited_s = time.monotonic() - begun_s
        raise MetadataUnavailable(
            f"cluster {cluster} cannot be reached from the driver, tried for {waited_s:.1f} s: "
            f"{error}"
        ) from None


async def _check(
    client: LedgerClient, selection: Selection, may_be_none: bool, may_be_gone: bool
) -> None:
    with trio.fail_after(ANSWER_TIMEOUT_S):
        store = StreamStore(client.store)
        for namespace, patterns in selection.by_namespace().items():
            await _check_namespace(store, namespace)
            for stream in () if may_be_gone else patterns.names:
                if not await _exists(store, namespace, stream):
                    raise await _missing_stream(store, namespace, stream)
            if patterns.patterns and not may_be_none:
                await _check_patterns(store, namespace, patterns)


async def _check_namespace(store: StreamStore, namespace: str) -> None:
    try:
        await store.read_namespace(namespace)
    except NoSuchNamespace:
        names = await store.list_namespaces()
        similar = _similar_names(namespace, names, "namespaces")
        raise NoSuchNamespace(
            f"there is no namespace {namespace!r}; {similar}. "
            f"Cure: correct the name, or create it: ledgerstream namespace create {namespace}"
        ) from None


async def _exists(store: StreamStore, namespace: str, stream: str) -> bool:
    try:
        metadata, _ = await store.read_stream(namespace, stream)
    except IsPartitioned:
        return True
    except NoSuchStream:
        return False
    return not metadata.is_deleted


async def _missing_stream(store: StreamStore, namespace: str, stream: str) -> LedgerError:
    names = await store.list_streams(namespace)
    partition = parse_partition(stream)
    if partition is not None:
        numbers = [found.partition for found in map(parse_partition, names)
                   if found is not None and found.stream == partition.stream]  # fmt: skip
        if numbers:
            return NoSuchStream(
                f"stream '{namespace}/{partition.stream}' has partitions 0 to {max(numbers)}, "
                f"but no partition {partition.partition}"
            )
        if partition.stream in names:
            return NoSuchStream(
                f"stream '{namespace}/{partition.stream}' is not partitioned: read it under that "
                f"name"
            )
    whole = sorted({name.partition("#")[0] for name in names})
    similar = _similar_names(stream, whole, f"streams of {namespace}")
    return NoSuchStream(
        f"there is no stream '{namespace}/{stream}'; {similar}. Cure: correct the name, or create "
        f"it: ledgerstream stream create {namespace}/{stream}"
    )


async def _check_patterns(store: StreamStore, namespace: str, patterns: StreamPatterns) -> None:
    names = await store.list_streams(namespace)
    if not patterns.select(names):
        shown = ", ".join(f"{namespace}/{pattern}" for pattern in patterns.patterns)
        whole = sorted({name.partition("#")[0] for name in names})
        raise NoSuchStream(
            f"no stream matches {shown}; {_similar_names('', whole, f'streams of {namespace}')}"
        )


def _similar_names(wanted: str, names: Sequence[str], what: str) -> str:
    """Returns a clause with similar names or, if none is similar, some of the existing names."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wanted.lower(), by_lower, n=_SHOWN_MAX, cutoff=0.6)
    if close:
        return f"similar names: {', '.join(by_lower[name] for name in close)}"
    if not names:
        return f"there are no {what}"
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"existing {what}: {shown}{more}"
