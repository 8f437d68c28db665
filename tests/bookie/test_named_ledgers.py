"""A bookie that must know all ledgers before it serves asks again for what was not answered."""

from __future__ import annotations

import random
from typing import cast

import pytest
import trio

from bookie.named_ledgers import read_metadata
from ledger.errors import MetadataUnavailable, NoSuchLedger
from ledger.metastore.ledgers import LedgerStore


class ForgetfulStore:
    """Ledger metadata in a store that loses requests."""

    def __init__(self, lost_part: float) -> None:
        self.answers = 0
        self._lost_part = lost_part
        self._chance = random.Random(7)

    async def read(self, ledger_id: int) -> tuple[int, int]:
        await trio.sleep(0.001)
        if self._chance.random() < self._lost_part:
            raise MetadataUnavailable("the request was lost")
        self.answers += 1
        if ledger_id % 10 == 0:
            raise NoSuchLedger("deleted")
        return ledger_id, 0


async def test_a_store_that_loses_requests_is_asked_again_for_those_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = ForgetfulStore(0.4)
    found = await read_metadata(cast("LedgerStore", store), range(1000))
    assert sorted(found) == [one for one in range(1000) if one % 10]
    assert store.answers == 1000, "what was answered is not asked for again"


async def test_a_store_that_never_answers_is_unavailable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.raises(MetadataUnavailable):
        await read_metadata(cast("LedgerStore", ForgetfulStore(1.0)), range(100))
