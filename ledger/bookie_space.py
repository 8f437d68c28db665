"""How much room bookies have, as they say themselves. All are asked at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import trio

from ledger.connection.pool import BookiePool
from ledger.errors import LedgerError, RemoteProtocolError, Status, error_of_status
from ledger.wire.messages import GetBookieInfoRequest, GetBookieInfoResponse

_TOTAL, _FREE = 1, 2


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """Bytes over all directories for entries of one bookie."""

    total_bytes: int
    free_bytes: int


async def ask_space(
    pool: BookiePool, bookies: Iterable[str], *, timeout_s: float
) -> dict[str, BookieSpace | LedgerError]:
    """What each bookie says, in the order of `bookies`; of one that fails, why."""
    found: dict[str, BookieSpace | LedgerError] = {}

    async def ask(bookie: str) -> None:
        try:
            found[bookie] = await _ask_one(pool, bookie, timeout_s)
        except LedgerError as error:
            found[bookie] = error

    order = list(dict.fromkeys(bookies))
    async with trio.open_nursery() as nursery:
        for bookie in order:
            nursery.start_soon(ask, bookie)
    return {bookie: found[bookie] for bookie in order}


async def _ask_one(pool: BookiePool, bookie: str, timeout_s: float) -> BookieSpace:
    answer = await pool.call(bookie, GetBookieInfoRequest(_TOTAL | _FREE), timeout_s=timeout_s)
    if answer.status is not Status.OK:
        raise error_of_status(answer.status, f"bookie info of {bookie}")
    if not isinstance(answer, GetBookieInfoResponse):
        raise RemoteProtocolError(f"{bookie} answered with {type(answer).__name__}")
    if answer.total_bytes is None or answer.free_bytes is None:
        raise RemoteProtocolError(f"{bookie} left out what it was asked: {answer}")
    return BookieSpace(answer.total_bytes, answer.free_bytes)
