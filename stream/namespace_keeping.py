"""The keeping half of a Namespace: its policy, truncation, and the trash.

Keeps no state; the work is done in policies.py, reclaim.py and trash.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name, check_new_name, parse_partition
from stream.core.position import Position
from stream.core.receipt import Receipt
from stream.core.retention import RetentionPlan
from stream.retention import policies
from stream.retention.partitioned_trash import undelete_partitioned
from stream.retention.policies import NamespaceSettings
from stream.retention.reclaim import plan_retention, truncate_stream
from stream.retention.trash import Trash, TrashEntry
from stream.retention.trash_listing import list_trash
from stream.store.streams import StreamStore
from stream.verify import OnProgress, StreamReport, verify_stream

if TYPE_CHECKING:
    from stream.namespace import Namespace


class NamespaceKeeping:
    """How long streams of a namespace are kept, and what becomes of them; a part of `Namespace`."""

    client: LedgerClient
    name: str
    store: StreamStore

    # Copies

    async def verify(
        self,
        stream: str,
        *,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
    ) -> StreamReport:
        """Reads every copy of every confirmed entry at every bookie and compares them; with a
        receipt, those of its entry, against what the receipt says. Changes nothing.

        What is missing, wrong or in doubt is in the report, which tells these apart; `on_progress`
        is called now and then. Segments in the trash are not looked at. Raises NoSuchStream,
        MetadataUnavailable; with a receipt also Truncated, and InvalidArgument if it is of another
        stream.
        """
        return await verify_stream(
            cast("Namespace", self), stream, receipt=receipt, on_progress=on_progress
        )

    # Policy

    async def policy(self) -> NamespaceMetadata:
        """How streams are written and kept. Raises NoSuchNamespace."""
        namespace, _ = await self.store.read_namespace(self.name)
        return namespace

    async def set_policy(
        self,
        *,
        dry_run: bool = False,
        allow_drop: bool = True,
        **settings: Unpack[NamespaceSettings],
    ) -> NamespaceMetadata:
        """Changes some settings; returns the policy as it then is. Running writers follow it.

        With `dry_run` nothing is stored. Without `allow_drop` a policy by which the next sweep of
        a janitor would drop or purge more than by the present one raises DataWouldBeDropped, and
        nothing is changed. Raises NoSuchNamespace, InvalidArgument (nothing is changed then).
        """
        return await policies.set_policy(
            self.client, self.name, settings, dry_run=dry_run, allow_drop=allow_drop
        )

    async def what_if(self, **settings: Unpack[NamespaceSettings]) -> list[RetentionPlan]:
        """What the next sweep would do to each stream, and to those in the trash, with these
        settings changed; without any, by the present policy. Changes nothing.

        Raises NoSuchNamespace, InvalidArgument.
        """
        policy = policies.with_settings(await self.policy(), settings)
        return await policies.plans(self.client, policy)

    async def explain_retention(self, stream: str) -> RetentionPlan:
        """What is kept, dropped and purged of a stream, when and why. Changes nothing.

        Raises NoSuchStream; IsPartitioned: ask for a partition, like `clicks#0`.
        """
        metadata = await self.stream_metadata(check_name(stream))
        plan, _ = await plan_retention(self.client, await self.policy(), metadata)
        return plan

    async def stream_metadata(self, stream: str) -> StreamMetadata:
        """Segments, epoch, truncation point. Raises NoSuchStream, IsPartitioned."""
        return await self.store.read_living_stream(self.name, check_name(stream))

    # Truncation and trash

    async def truncate(self, stream: str, position: Position) -> StreamMetadata:
        """Records before `position` are gone for readers; whole segments go to the trash.

        Moves forward only, see `untruncate`. Raises InvalidArgument for a position behind the end
        of the stream, NoSuchStream.
        """
        return await truncate_stream(self.client, self.store, self.name, stream, position)

    async def untruncate(self, stream: str, position: Position | None = None) -> StreamMetadata:
        """Brings back truncated records from `position` on, or as many as there still are (None).

        What the policy would drop is dropped again at the next sweep, into a trash that begins
        its time anew: change the policy first. Raises NoSuchStream, IsPartitioned;
        InvalidArgument for a position that was purged.
        """
        return await Trash(self.client, self.name).untruncate(check_name(stream), position)

    async def undelete_stream(self, stream: str, as_name: str | None = None) -> None:
        """Brings back the stream of this name that was deleted last, with its cursors.

        With `as_name` under another name, without its cursors. Raises NotInTrash (it was purged,
        or never deleted), StreamExists if the name is in use, InvalidArgument for a partitioned
        stream that should change its name.
        """
        new = None if as_name is None else check_new_name(as_name)
        if new is None and (partition := parse_partition(stream)) is not None:
            raise InvalidArgument(
                f"{stream!r} is a partition: bring back all of {partition.stream!r}, or this one "
                f"as a stream of its own (as_name)"
            )
        if not await undelete_partitioned(self.client, self.name, check_name(stream), new):
            await Trash(self.client, self.name).undelete(stream, as_name=new)

    async def trash(self) -> list[TrashEntry]:
        """Everything that can be brought back, by name and time. Raises NoSuchNamespace."""
        return await list_trash(self.client, self.name)

    async def purge(self, stream: str) -> int:
        """Empties the trash of a stream now: truncated segments, and what was deleted under its
        name (a partitioned stream: of all its partitions). It cannot come back. Returns how many
        ledgers were deleted. Raises NotInTrash.
        """
        return await Trash(self.client, self.name).purge_all_of(check_name(stream))
