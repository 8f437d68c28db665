"""A scope cancelled at every await of an operation: nothing acknowledged is lost, nothing is
there twice, and the object stays usable or is clearly closed. Single calls of a writer are in
tests/stream/writing/test_cancellation.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Unpack

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import LedgerError
from stream import (
    LATEST,
    Namespace,
    NamespaceSettings,
    SequenceMismatch,
    StreamReader,
    StreamWriter,
)
from tests.sim.cancellation import Operation, cut_everywhere, cut_once
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_all, read_values

SMALL_ROLL = 1 << 16

Check = Callable[[], Awaitable[None]]


class Judge:
    """What was tried and what was acknowledged, and whether the stream agrees."""

    def __init__(self, namespace: Namespace, stream: str) -> None:
        self.namespace = namespace
        self.stream = stream
        self.tried: list[bytes] = []
        self.acked: list[bytes] = []

    async def append(self, writer: StreamWriter, value: bytes) -> None:
        self.tried.append(value)
        await writer.append(value)
        self.acked.append(value)

    async def check(self) -> None:
        """Reads all: the records tried, in order, each at most once, those acknowledged once."""
        records = await read_all(self.namespace, self.stream)
        values = [record.value for record in records]
        assert [record.sequence for record in records] == list(range(len(records)))
        assert len(set(values)) == len(values), "a record is there twice"
        assert values == [value for value in self.tried if value in values], "out of order"
        missing = [value for value in self.acked if value not in values]
        assert not missing, f"acknowledged, and lost: {missing[:5]}"


def run(
    scenario: Callable[[Namespace], Awaitable[None]],
    seed: int = 0,
    **settings: Unpack[NamespaceSettings],
) -> None:
    settings["trash_ms"] = 0

    async def in_cluster(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, **settings) as namespace:
            await scenario(namespace)

    simulate(in_cluster, seed, time_limit_s=100_000)


def test_a_conditional_append_that_was_cut_can_be_tried_again() -> None:
    """The sequence number makes the second try safe: it is refused if the first one is there."""

    async def scenario(namespace: Namespace) -> None:
        async with namespace.writer("s", create=True) as writer:
            for number in range(100):
                value = b"%d" % number

                async def append(value: bytes = value, number: int = number) -> None:
                    await writer.append(value, expected_sequence=number)

                is_cut = await cut_once(append, number)
                try:
                    await append()
                    assert is_cut, "what was acknowledged is appended again"
                except SequenceMismatch:
                    pass
                if not is_cut:
                    break
        records = await read_all(namespace, "s")
        assert [record.value for record in records] == [b"%d" % n for n in range(number + 1)]

    run(scenario)


@pytest.mark.parametrize("hand_over_s", [None, 5.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_takeover_append_and_close(seed: int, hand_over_s: float | None) -> None:
    """The whole block of a writer, from takeover to seal. The next writer must find a stream
    that it can take over, with all that was acknowledged."""

    async def scenario(namespace: Namespace) -> None:
        judge = Judge(namespace, "s")
        await namespace.ensure_stream("s")

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                async with namespace.writer("s", hand_over_s=hand_over_s) as writer:
                    for n in range(3):
                        await judge.append(writer, b"%d/%d" % (number, n))

            async def check() -> None:
                if number % 10 == 9:
                    await judge.check()

            return operation, check

        cuts = await cut_everywhere(make)
        assert cuts > 20
        async with namespace.writer("s") as writer:
            await judge.append(writer, b"last")
        await judge.check()

    run(scenario, seed)


@pytest.mark.parametrize(
    ("settings", "pause_s"), [({"roll_bytes": SMALL_ROLL}, 0.02), ({"roll_ms": 1000}, 0.4)]
)
def test_roll(settings: NamespaceSettings, pause_s: float) -> None:
    """A writer that rolls all the time, cut with its background tasks at every await."""
    rolls: set[int] = set()

    async def scenario(namespace: Namespace) -> None:
        judge = Judge(namespace, "s")
        await namespace.ensure_stream("s")

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                async with namespace.writer("s") as writer:
                    try:
                        for n in range(6):
                            await judge.append(writer, b"%d/%d/" % (number, n) + bytes(25_000))
                            await trio.sleep(pause_s)
                    finally:
                        rolls.add(writer.statistics().rolls)

            async def check() -> None:
                if number % 50 == 49:
                    await judge.check()
                    # What has been judged may go: the check stays as cheap as the first one.
                    await namespace.delete_stream("s")
                    await namespace.ensure_stream("s")
                    judge.tried.clear()
                    judge.acked.clear()

            return operation, check

        cuts = await cut_everywhere(make)
        assert cuts > 50
        await judge.check()

    run(scenario, **settings)
    assert {0, 1} <= rolls, rolls


async def some_segments(namespace: Namespace, stream: str) -> list[bytes]:
    """A stream of three sealed segments and an open one with nothing unread behind it."""
    values = [b"%d/" % number + bytes(3000) for number in range(60)]
    for begin in range(0, 60, 20):
        async with namespace.writer(stream, create=True) as writer:
            for value in values[begin : begin + 20]:
                await writer.append(value)
    return values


def test_read() -> None:
    """A reader whose every call is cut once gives all records in order, once."""

    async def scenario(namespace: Namespace) -> None:
        values = await some_segments(namespace, "s")
        for at in range(12):
            seen: list[bytes] = []
            async with namespace.reader("s") as reader:
                while len(seen) < len(values):

                    async def read(reader: StreamReader = reader, seen: list[bytes] = seen) -> None:
                        seen.append((await reader.__anext__()).value)

                    if await cut_once(read, at):
                        await read()
            assert seen == values
        for at in range(12):
            seen = []
            async with namespace.reader("s") as reader:
                while len(seen) < len(values):

                    async def batch(
                        reader: StreamReader = reader, seen: list[bytes] = seen
                    ) -> None:
                        seen.extend((await reader.next_batch()).values())

                    if await cut_once(batch, at):
                        await batch()
            assert seen == values

    run(scenario)


def test_opening_a_reader() -> None:
    async def scenario(namespace: Namespace) -> None:
        values = await some_segments(namespace, "s")

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                async with namespace.reader("s") as reader:
                    assert (await reader.__anext__()).value == values[0]

            async def check() -> None:
                pass

            return operation, check

        assert await cut_everywhere(make) > 3
        assert await read_values(namespace) == values

    run(scenario)


def test_tail() -> None:
    """A tail that is cut at each await while records come, across rolls: all, once, in order."""

    async def scenario(namespace: Namespace) -> None:
        for at in range(25):
            stream = f"s{at}"
            await namespace.ensure_stream(stream)
            values = [b"%d/" % number + bytes(9_000) for number in range(25)]
            seen: list[bytes] = []
            async with trio.open_nursery() as nursery:

                async def write(stream: str = stream, values: list[bytes] = values) -> None:
                    async with namespace.writer(stream) as writer:
                        for value in values:
                            await writer.append(value)
                            await trio.sleep(0.02)

                async with namespace.reader(stream, start=LATEST) as reader:
                    nursery.start_soon(write)
                    while len(seen) < len(values):

                        async def read(
                            reader: StreamReader = reader, seen: list[bytes] = seen
                        ) -> None:
                            seen.append((await reader.__anext__()).value)

                        if await cut_once(read, at) and len(seen) < len(values):
                            await read()
            assert seen == values

    run(scenario, roll_bytes=SMALL_ROLL)


def test_closing_a_writer_in_a_cancelled_scope_says_that_it_is_closed() -> None:
    async def scenario(namespace: Namespace) -> None:
        writer: StreamWriter | None = None
        with trio.CancelScope() as scope:
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"there")
                scope.cancel()
                await trio.sleep_forever()
        assert writer is not None
        assert isinstance(writer.error, LedgerError)
        assert not writer.error.retry_is_safe or "abandoned" in str(writer.error)
        with pytest.raises(LedgerError, match="abandoned"):
            writer.append_nowait(b"late")
        assert await read_values(namespace) == [b"there"]

    run(scenario)
