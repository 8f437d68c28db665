"""`ledgerstream bookie place`: says where a bookie is, in the table that an operator keeps."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ledger.cli.output import ClusterOption, OutputOption, UsageError, remark, usage

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


async def place(
    bookie: str,
    location: str | None = None,
    /,
    *,
    remove: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Record where a bookie is, for placement policies. It overrides the bookie's own setting;
    clients follow it within a minute. `bookie list` shows locations.

    Parameters
    ----------
    bookie
        Id of the bookie; it may be down, or start later.
    location
        Region and rack, like /eu-1/rack-7, or a rack in the default region, like /rack-7. For
        placement by zones: zone and upgrade domain.
    remove
        Remove the record, so that the bookie's own setting counts.
    """
    from ledger.client import LedgerClient
    from ledger.core.placement.topology import Location
    from ledger.metastore.paths import check_bookie_id

    if remove is (location is not None):
        raise UsageError("give a location like /eu-1/rack-7, or --remove")
    with usage():
        check_bookie_id(bookie)
        where = None if location is None else Location.parse(location)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        table = client.bookies.locations
        if where is None:
            was_there = await table.remove(bookie)
        elif bookie not in await client.bookies.all():
            remark(
                f"warning: bookie {bookie} is not known in this cluster; `bookie list` shows all"
            )
        if where is not None:
            await table.place(bookie, where)
        now = (await client.bookies.topology()).place(bookie).location.path
    done = {"bookie": bookie, "location": now}
    if where is not None:
        output.report(done, f"bookie {bookie} is in {now}")
    elif was_there:
        output.report(
            done, f"the record of bookie {bookie} is removed: by its settings it is in {now}"
        )
    else:
        output.report(done, f"there was no record of bookie {bookie}: it is in {now}")
