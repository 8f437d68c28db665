"""`ledgerstream bookie rename`: gives a stopped bookie another id, because its address changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ledger.cli.output import OutputOption, print_json, remark

if TYPE_CHECKING:
    from bookie.startup.rename import Renamed

_OUTPUT = OutputOption()
_SHOWN_EVERY_S = 10.0
_Flag = Annotated[bool, Parameter(negative="")]


async def rename(
    old: str,
    new: str,
    /,
    *,
    config: Path,
    dry_run: _Flag = False,
    include_open: _Flag = False,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give a stopped bookie another id: it has the same disks and another address. The cookies,
    the metadata of all its ledgers, and what else names it follow; no copy moves.

    The bookie cannot start until that is complete; after an interruption, repeat the command. A
    ledger that a living client writes to this bookie is refused, before anything is changed.

    Parameters
    ----------
    old
        The id that the bookie has.
    new
        The id that it gets; no bookie of the cluster may have it.
    config
        The bookie's TOML file, with the new address or bookie_id and the directories as before.
    dry_run
        Check everything, show how many ledgers name the bookie, and change nothing.
    include_open
        Change also ledgers that are being recovered, and open ones of programs that do not say
        whether they are alive, as Apache's clients: these can append no more.
    """
    done = await _rename(old, new, config, is_dry=dry_run, includes_open=include_open)
    facts = {"old": old, "new": new, "ledgers": done.ledgers, "was_renamed": done.was_renamed}
    if done.was_renamed:
        output.report(facts, f"the bookie is {new} already")
    elif not dry_run:
        text = f"bookie {old} is {new} now, in {done.ledgers:,} ledgers; start the bookie"
        output.report(facts, text)
    elif output.json:
        print_json(facts)
    else:
        output.show(facts, title=f"bookie {old}")
        remark("nothing was changed (--dry-run)")


async def _rename(
    old: str, new: str, config: Path, *, is_dry: bool, includes_open: bool
) -> Renamed:
    from bookie.cli.check import settings_of
    from bookie.startup.rename import BookieRename
    from bookie.storage.disk.real_disk import RealDisk
    from ledger.metastore import open_store
    from ledger.metastore.address import ClusterAddress
    from ledger.metastore.ledgers import LedgerStore
    from ledger.metastore.sqlite.store import wall_clock_ms
    from ledger.metastore.underreplication import UnderreplicationStore

    settings = settings_of(config)
    root = settings.ledgers_root
    opened = open_store(
        settings.metadata_uri,
        session_timeout_ms=settings.session_timeout_ms,
        root=root,
        may_create=False,
        tls=settings.metadata_context(),
    )
    layout = ClusterAddress.parse(settings.metadata_uri).layout
    async with opened as store:
        change = BookieRename(
            settings,
            RealDisk(),
            store,
            LedgerStore(store, root, layout=layout),
            UnderreplicationStore(store, root, wall_clock_ms),
            includes_open=includes_open,
            on_progress=_progress(),
        )
        return await change.run(old, new, is_dry=is_dry)


def _progress() -> Callable[[str, int, int], None]:
    """Returns a function that prints a line now and then."""
    import trio

    shown_s = trio.current_time()

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown_s
        if trio.current_time() >= shown_s + _SHOWN_EVERY_S:
            shown_s = trio.current_time()
            remark(f"{what}: {done:,} of {total:,}")

    return show
