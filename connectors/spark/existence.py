"""Are the streams there that somebody named? Asked on the driver, before any task.

What is missing is an error with the names that look alike; a cluster that does not answer is one
that says what was tried and for how long. Reads metadata only, and makes nothing.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.options.options import Selection
from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataUnavailable
from ledger.metastore import ClusterAddress
from stream.core.names import parse_partition
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchNamespace, NoSuchStream
from stream.store.streams import StreamStore

ANSWER_TIMEOUT_S = 20.0
_SHOWN_MAX = 5


def check_exist(
    cluster: str, selection: Selection, *, may_be_none: bool = True, may_be_gone: bool = False
) -> None:
    """Raises NoSuchNamespace, NoSuchStream, MetadataUnavailable.

    Args:
        may_be_none: whether it is fine that no stream matches a pattern.
        may_be_gone: whether it is fine that streams which are named are not there.
    """
    _check_file(cluster)
    begun_s = time.monotonic()
    try:
        cached_cluster(cluster).run(_check, selection, may_be_none, may_be_gone)
    except trio.TooSlowError:
        raise MetadataUnavailable(
            f"cluster {cluster}: its metadata store took the connection and did not answer in "
            f"{ANSWER_TIMEOUT_S:g} s. Cure: look at its log and at what is between"
        ) from None
    except MetadataUnavailable as error:
        waited_s = time.monotonic() - begun_s
        raise MetadataUnavailable(
            f"cluster {cluster} cannot be reached from the driver, tried for {waited_s:.1f} s: "
            f"{error}"
        ) from None


def _check_file(cluster: str) -> None:
    """A wrong path must not become a new, empty cluster."""
    path = ClusterAddress.parse(cluster).sqlite_path
    if path is not None and not Path(path).exists():
        raise MetadataUnavailable(
            f"cluster {cluster}: there is no file {Path(path).absolute()} on the "
            f"machine of the driver. Cure: the address that `ledgerstream standalone` prints; "
            f"with executors on other machines, zk://host:2181/ledgers"
        )


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
            f"Cure: the right name, or ledgerstream namespace create {namespace}"
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
                f"and no partition {partition.partition}"
            )
        if partition.stream in names:
            return NoSuchStream(
                f"stream '{namespace}/{partition.stream}' is not partitioned: read it by that name"
            )
    whole = sorted({name.partition("#")[0] for name in names})
    return NoSuchStream(
        f"there is no stream '{namespace}/{stream}'; "
        f"{_similar_names(stream, whole, f'streams of {namespace}')}. Cure: the right name, or "
        f"ledgerstream stream create {namespace}/{stream}"
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
    """The names that may have been meant, else some of those there are."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wanted.lower(), by_lower, n=_SHOWN_MAX, cutoff=0.6)
    if close:
        return f"alike are {', '.join(by_lower[name] for name in close)}"
    if not names:
        return f"there are no {what}"
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"there are the {what} {shown}{more}"
