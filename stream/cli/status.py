"""`ledgerstream status`: one verdict about a cluster, and its reasons. Changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.cli.output import (
    AtLeastZero,
    ClusterOption,
    OutputOption,
    print_json,
    time_of,
    usage,
)

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.core.autorecovery.bookies import Bookies
    from ledger.core.metadata import LedgerMetadata
    from ledger.errors import MetadataUnavailable
    from ledger.metastore.bookies import BookieInfo
    from stream.cli.health import Observed, Reason
    from stream.namespace import Namespace

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_ASKED_AT_ONCE_MAX = 16
_ANSWER_TIMEOUT_S = 5.0
_CURSORS_SHOWN_MAX = 10
_MARKS_READ_MAX = 1000
_REPORT_FRESH_MS = 10_000
_REPORT_PATH = "/api/v1/bookie/report"
T = TypeVar("T")


async def status(
    *,
    lag_max: str | None = None,
    ledgers_max: AtLeastZero = 10_000,
    streams_max: AtLeastZero = 1000,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Report whether the cluster is healthy, and why not. Changes nothing.

    Exit code 0: healthy; 3: everything works with less to spare, copies may be missing and are
    being made; 4: in danger, or not everything could be asked; 5: entries have no copy left.

    Parameters
    ----------
    lag_max
        A cursor or consumer group that is further behind makes the cluster degraded, like 10m.
        Without it, lag is shown and not judged.
    ledgers_max
        Examine the copies of up to N ledgers, the newest ones.
    streams_max
        Examine the cursors of up to N streams.
    """
    from ledger.client import LedgerClient
    from ledger.errors import MetadataUnavailable
    from ledger.units import parse_duration_ms
    from stream.cli.health import Observed, reasons_of, verdict_of

    with usage():
        lag_ms_max = None if lag_max is None else parse_duration_ms(lag_max)
    uri, options = cluster.uri, cluster.options
    observed = Observed()
    try:
        async with LedgerClient.connect(uri, options=options) as client:
            await _observe(client, observed, ledgers_max=ledgers_max, streams_max=streams_max)
    except* MetadataUnavailable as group:
        observed.metadata_problem = str(_first(group))
    reasons = reasons_of(observed, lag_ms_max=lag_ms_max)
    _show(observed, reasons, output)
    return verdict_of(reasons).exit_code


def _first(group: BaseExceptionGroup[MetadataUnavailable]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


async def _observe(
    client: LedgerClient, observed: Observed, *, ledgers_max: int, streams_max: int
) -> None:
    from ledger.errors import NoSuchLedger

    await _observe_bookies(client, observed)
    bookies = await _observe_healing(client, observed)
    registered = {one.bookie for one in observed.bookies if one.state != "down"}
    ids = await client.list_ledgers()
    observed.ledgers = len(ids)

    async def examine(ledger_id: int) -> None:
        try:
            metadata = await client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            return  # deleted since the listing
        observed.ledgers_examined += 1
        observed.copies.add(metadata, bookies)
        observed.ledgers_unreadable += not _can_be_read(metadata, registered)

    await _for_each(ids[-ledgers_max:] if ledgers_max else [], examine)
    await _observe_streams(client, observed, streams_max)


async def _observe_healing(client: LedgerClient, observed: Observed) -> Bookies:
    """Observes auto-recovery; returns the bookies as it sees them: those that are down and were not
    found lost may return."""
    from dataclasses import replace

    from ledger.autorecovery.cluster_view import read_bookies
    from ledger.autorecovery.published import read_audit, read_workers
    from ledger.errors import MetadataCorrupt
    from ledger.metastore.decommissions import Decommissions
    from ledger.metastore.election import AuditorElection

    healing, marks = observed.healing, client.underreplication
    healing.is_enabled = await marks.is_enabled()
    try:
        election = AuditorElection(client.store, client.ledgers.root, client.rng)
        healing.auditor = await election.auditor()
    except MetadataCorrupt as error:
        observed.problems.append(str(error))
    workers = await read_workers(client.store)
    healing.workers = len(workers)
    now_ms = client.now_ms()
    healing.bytes_per_s = sum(
        one.bytes_per_s for one in workers if now_ms - one.updated_ms < _REPORT_FRESH_MS
    )
    marked = await marks.list()
    healing.ledgers_marked = len(marked)
    are_marked = frozenset(marked)
    healing.held = {
        ledger_id: (reason, is_loss)
        for worker in workers
        for ledger_id, reason, _, is_loss in worker.held
        if ledger_id in are_marked
    }

    async def look(ledger_id: int) -> None:
        try:
            mark = await marks.read(ledger_id)
        except MetadataCorrupt as error:
            observed.problems.append(str(error))
            return
        if mark is not None:
            oldest = healing.oldest_mark_ms
            healing.oldest_mark_ms = min(mark.created_ms, oldest or mark.created_ms)

    await _for_each(marked[:_MARKS_READ_MAX], look)
    audit = await read_audit(client.store)
    lost = () if audit is None else audit.bookies_lost
    bookies = await read_bookies(client.bookies, Decommissions(client.store))
    down = [one.bookie for one in observed.bookies if one.state == "down"]
    return replace(bookies, awaited=tuple(one for one in down if one not in lost))


def _can_be_read(metadata: LedgerMetadata, registered: set[str]) -> bool:
    """Whether each write set of each ensemble surely has a copy of its entries: more bookies than
    may lack an acknowledged entry."""
    may_lack = metadata.write_quorum - metadata.ack_quorum
    for fragment in metadata.fragments:
        size = len(fragment.bookies)
        for start in range(size):
            members = [fragment.bookies[(start + n) % size] for n in range(metadata.write_quorum)]
            if sum(member in registered for member in members) <= may_lack:
                return False
    return True


async def _observe_bookies(client: LedgerClient, observed: Observed) -> None:
    from ledger.connection.pool import BookieSpace
    from ledger.errors import Unauthorized
    from stream.cli.health import BookieHealth

    writable, readable = await client.bookies.available(), await client.bookies.read_only()
    states = dict.fromkeys(await client.bookies.all(), "down")
    states |= dict.fromkeys(readable, "read only") | dict.fromkeys(writable, "up")
    space = await client.bookie_info(timeout_s=_ANSWER_TIMEOUT_S)
    in_repair: dict[str, int | None] = {}
    infos = {**readable, **writable}

    async def ask_report(bookie: str) -> None:
        in_repair[bookie] = await _ledgers_in_repair(client, bookie, infos[bookie], observed)

    await _for_each([name for name, info in infos.items() if info.http is not None], ask_report)
    for bookie, state in sorted(states.items()):
        found = space.get(bookie)
        is_known = isinstance(found, BookieSpace)
        cure = ". Cure: the role `operate`" if isinstance(found, Unauthorized) else ""
        observed.bookies.append(
            BookieHealth(
                bookie=bookie,
                state=state,
                free_bytes=found.free_bytes if isinstance(found, BookieSpace) else None,
                total_bytes=found.total_bytes if isinstance(found, BookieSpace) else None,
                problem=None if is_known or found is None else f"{found}{cure}",
                ledgers_in_repair=in_repair.get(bookie),
            )
        )


async def _ledgers_in_repair(
    client: LedgerClient, bookie: str, info: BookieInfo, observed: Observed
) -> int | None:
    from ledger.cli.http_client import ask
    from ledger.errors import LedgerError

    try:
        report = await ask(bookie, info, _REPORT_PATH, options=client.options)
        return sum(int(one["ledgers_in_limbo"]) for one in report["ledger_directories"])
    except LedgerError as error:
        observed.problems.append(str(error))
    except (KeyError, TypeError, ValueError):
        observed.problems.append(f"the report of bookie {bookie} is not of this version")
    return None


async def _observe_streams(client: LedgerClient, observed: Observed, streams_max: int) -> None:
    """Observes namespaces, and the lag of every cursor, those of consumer groups among them."""
    from stream.cli.health import NamespaceHealth
    from stream.errors import NoSuchNamespace
    from stream.namespace import Namespace, list_namespaces

    left = streams_max
    for name in await list_namespaces(client):
        namespace = Namespace(client, name)
        try:
            policy, streams = await namespace.policy(), await namespace.list_streams()
        except NoSuchNamespace:
            continue  # deleted since the listing
        observed.namespaces.append(
            NamespaceHealth(
                namespace=name,
                ensemble_size=policy.ensemble_size,
                ack_quorum=policy.ack_quorum,
                streams=len(streams),
            )
        )
        examined = streams[:left]
        left -= len(examined)

        async def examine(stream: str, namespace: Namespace = namespace) -> None:
            await _observe_cursors(namespace, stream, observed)

        await _for_each(examined, examine)
    observed.cursors.sort(key=lambda one: (-one.lag_seconds, one.stream, one.cursor))


async def _observe_cursors(namespace: Namespace, stream: str, observed: Observed) -> None:
    from ledger.errors import LedgerError, MetadataUnavailable, NoSuchLedger
    from stream.cli.health import CursorHealth
    from stream.errors import NoSuchStream

    try:
        for partition in await namespace.partitions(stream):
            for cursor in await namespace.cursors(partition):
                lag = await namespace.cursor_lag(partition, cursor.name)
                observed.cursors.append(
                    CursorHealth(
                        cursor=cursor.name,
                        stream=f"{namespace.name}/{partition}",
                        lag_records=lag.records,
                        lag_seconds=lag.seconds,
                        lag_bytes=lag.bytes,
                    )
                )
        observed.streams_examined += 1
    except (NoSuchStream, NoSuchLedger):
        pass  # deleted or truncated since the listing
    except MetadataUnavailable:
        raise
    except LedgerError as error:
        observed.problems.append(f"lag on {namespace.name}/{stream}: {error}")


async def _for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    import trio

    waiting = iter(items)

    async def take_turns() -> None:
        for item in waiting:
            await work(item)

    async with trio.open_nursery() as nursery:
        for _ in range(_ASKED_AT_ONCE_MAX):
            nursery.start_soon(take_turns)


def _show(observed: Observed, reasons: list[Reason], output: OutputOption) -> None:
    from stream.cli.health import WORDS, verdict_of

    verdict, copies, healing = verdict_of(reasons), observed.copies, observed.healing
    streams = sum(one.streams for one in observed.namespaces)
    facts: dict[str, Any] = {
        "metadata": "out of reach" if observed.metadata_problem else "reachable",
        "bookies_up": sum(one.state == "up" for one in observed.bookies),
        "bookies_known": len(observed.bookies),
        "namespaces": len(observed.namespaces),
        "streams": streams,
        "streams_examined": observed.streams_examined,
        "ledgers": observed.ledgers,
        "ledgers_examined": observed.ledgers_examined,
        "ledgers_below_write_quorum": copies.below_write_quorum.ledgers,
        "ledgers_below_ack_quorum": copies.below_ack_quorum.ledgers,
        "ledgers_without_copy": copies.without_copy.ledgers,
        "bytes_below_write_quorum": copies.below_write_quorum.bytes,
        "bytes_below_ack_quorum": copies.below_ack_quorum.bytes,
        "bytes_without_copy": copies.without_copy.bytes,
        "ledgers_marked": healing.ledgers_marked,
        "oldest_mark": time_of(healing.oldest_mark_ms),
        "autorecovery": "enabled" if healing.is_enabled else "disabled",
        "auditor": healing.auditor,
        "workers": healing.workers,
        "copied_bytes_per_s": int(healing.bytes_per_s),
    }
    if output.json:
        causes = [{"verdict": one.health.name.lower(), "reason": one.text} for one in reasons]
        print_json(
            {"verdict": verdict.name.lower(), "reasons": causes}
            | facts
            | {"bookies": [asdict(one) for one in observed.bookies]}
            | {"cursors": [asdict(one) for one in observed.cursors]}
        )
        return
    output.say(WORDS[verdict])
    for reason in reasons:
        output.say(f"- {reason.text}")
    if observed.metadata_problem is None:
        output.show(facts, title="cluster")
        output.show_list(map(asdict, observed.bookies), title="bookies", none="no bookies")
    if observed.cursors:
        slowest = observed.cursors[:_CURSORS_SHOWN_MAX]
        output.show_list(map(asdict, slowest), title="cursors furthest behind", none="")
