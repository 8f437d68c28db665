"""The differences between the trio classes and their faces for asyncio and threads.

All other methods are plain calls into the trio thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Face:
    """How the face of a trio class is generated.

    Args:
        bodies: bodies of methods that are not plain calls, as text for asyncio.
        attributes: public attributes of the trio object, with their types, or with the expression
            that has them ("Position: self._to").
        home: module of the trio class, if it is not a public name of `stream`.
        is_made: whether users make the object themselves, with a client.
        reads: plain functions that any thread may call; others run in the trio thread while the
            caller waits.
        base: class of the hand-written part.
        opened: expressions that `_of` sets besides `_bridge` and `_inner`, by name.
        extra: an additional argument of `_of`.
        holder: type of the object that `_of` gets instead of the trio object, and the attribute
            that holds the trio object.
        turn: function through which calls pass, so that they run after earlier appends.
        skipped: methods without a face.
        is_opened: whether it can be opened without a block, and closed.
        closes: what its method `close` does, if the trio class has none.
    """

    bodies: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    base: str = ""
    opened: dict[str, str] = field(default_factory=dict)
    extra: str = ""
    holder: tuple[str, str] | None = None
    turn: str = ""
    skipped: frozenset[str] = frozenset()
    is_made: bool = False
    is_opened: bool = False
    closes: str = ""
    home: str = ""


_LEAVE = "await self.aclose()"
# A caller that is cancelled at the moment when its records arrive gets them with the next call.
_STEP = """\
inner = self._inner
return await self._bridge.call(lambda: anext(inner), inner._take_back)"""
_RECORD_STEP = """\
inner = {}
taken = await self._bridge.call(inner._next_delivered_record, inner._take_back_record)
return taken[0]"""
_TICKET = """\
ticket = Ticket(
    self._bridge, self._appends, value, key, event_time_ms, headers, expected_sequence
)"""
_RECEIPT = """\
if receipt:
    return await self._bridge.call(
        lambda: self._appends.in_turn(
            lambda: self._inner.append(
                value, key, event_time_ms, headers,
                expected_sequence=expected_sequence, receipt=True,
            )
        )
    )
if expected_sequence is not None:
    return await self._bridge.call(
        lambda: self._appends.in_turn(
            lambda: self._inner.append(
                value, key, event_time_ms, headers, expected_sequence=expected_sequence
            )
        )
    )
"""
_PARTITION_TICKET = """\
ticket = PartitionTicket(
    self._bridge, self._appends, value, key, event_time_ms, headers, partition
)"""
_SETTLE = "await self._bridge.call(lambda: self._appends.settle(lambda: self._inner.{}()))"
_CLOSE = f"try:\n    {_SETTLE.format('close')}\nfinally:\n    await self._leave()"
_GIVE = """
self._appends.submit(ticket)
return ticket"""
_ROOM = """\
if not self._appends.has_room:
    raise WouldBlock
"""
_WAIT = """
await self._append(ticket)
return await ticket.wait()"""
FACES: dict[str, Face] = {
    "Namespace": Face(
        is_made=True,
        is_opened=True,
        closes="Closes what was opened from it without a block, newest first, and then itself.",
        attributes={"name": "str"},
        skipped=frozenset({"close", "open"}),
        bodies={
            "connect": """\
async with (
    open_bridge() as bridge,
    bridge.hold(
        lambda: TrioNamespace.connect(
            cluster, name, create=create, options=options, credentials=credentials,
            writer_options=writer_options,
        )
    ) as inner,
):
    yield cls._of(bridge, inner)""",
            "create_stream": """\
if partitions is None:
    return await self._bridge.call(lambda: self._inner.create_stream(stream))
return await self._bridge.call(
    lambda: self._inner.create_stream(stream, partitions=partitions)
)""",
            "verify": """\
relayed = self._bridge.relay(on_progress)
return await self._bridge.call(
    lambda: self._inner.verify(stream, receipt=receipt, on_progress=relayed)
)""",
        },
    ),
    "StreamWriter": Face(
        is_opened=True,
        attributes={"stream": "str"},
        base="stream.aio.tickets:Appending",
        holder=("stream.bridge.writing:StreamAppends", "writer"),
        opened={"_appends": "holder"},
        turn="self._appends.in_turn",
        reads=frozenset({"statistics"}),
        skipped=frozenset({"receipt_of"}),
        bodies={
            "has_room": "return self._appends.has_room and self._inner.error is None",
            "append_nowait": _ROOM + _TICKET + _GIVE,
            "append": _RECEIPT + _TICKET + _WAIT,
            "wait_room": "await self._wait_room()",
            "flush": _SETTLE.format("flush"),
            "close": _CLOSE,
            "producer": """\
inner = await self._bridge.call(lambda: self._appends.in_turn(lambda: self._inner.producer(name)))
return Producer._of(self._bridge, inner, self._appends)""",
        },
    ),
    "PartitionedWriter": Face(
        is_opened=True,
        attributes={"stream": "str"},
        base="stream.aio.tickets:Appending",
        holder=("stream.bridge.writing:PartitionedAppends", "writer"),
        opened={"_appends": "holder"},
        turn="self._appends.in_turn",
        reads=frozenset({"statistics", "partition_of"}),
        skipped=frozenset({"follow_growth"}),
        bodies={
            "append_nowait": _ROOM + _PARTITION_TICKET + _GIVE,
            "append": _PARTITION_TICKET + _WAIT,
            "wait_room": "await self._wait_room()",
            "flush": _SETTLE.format("flush"),
            "close": _CLOSE,
        },
    ),
    "Producer": Face(
        attributes={"name": "str"},
        base="stream.aio.tickets:Producing",
        extra="appends: StreamAppends",
        opened={"_appends": "appends"},
        turn="self._appends.in_turn",
        skipped=frozenset({"append_nowait"}),
        bodies={
            "append": "return await self._append_numbered("
            "value, sequence, key, event_time_ms, headers)",
        },
    ),
    "StreamReader": Face(
        is_opened=True,
        attributes={"stream": "str"},
        base="stream.aio.batches:Reading",
        holder=("stream.bridge.reading:BridgedReader", "reader"),
        opened={"_bridged": "holder", "_at": "holder.begin"},
        skipped=frozenset({"__aenter__", "__aexit__"}),
        bodies={
            "aclose": "try:\n    await self._close()\nfinally:\n    await self._leave()",
            "position": "return self._position()",
            "__aiter__": "return self",
            "__anext__": """\
while True:
    for record in self._records:
        self._last_record = record
        return record
    await self._begin_batch()""",
            "next_batch": """\
batch = await self._next_batch(None)
assert batch is not None, "without an end there is always a next batch"
return batch""",
            "batches": "return BatchIterator(self, stops=False)",
            "read_to_end": "return BatchIterator(self, stops=True)",
            "next_batch_before": "return await self._next_batch(end)",
        },
    ),
    "BackwardBatches": Face(
        attributes={"stream": "str"},
        bodies={
            "__aenter__": "return self",
            "__aexit__": _LEAVE,
            "__aiter__": "return self",
            "__anext__": _STEP,
        },
    ),
    "MergedReader": Face(
        is_opened=True,
        closes="Closes a reader that was opened without a block. Idempotent.",
        base="stream.aio.merging:Merging",
        holder=("stream.bridge.reading:BridgedMerge", "reader"),
        opened={"_bridged": "holder"},
        bodies={
            "watermark_ms": "return self._watermark()",
            "streams": "return self._streams()",
            "positions": "return self._positions()",
            "__aiter__": "return self",
            "__anext__": """\
while True:
    for record in self._records:
        self._last_record = record
        step = self._step
        assert step is not None, "records of no batch"
        return MergedRecord(step.batch.stream, record, step.batch.is_late)
    self._is_partial, self._last_record = False, None
    await self._begin_step()""",
            "next_batch": "return await self._next_merged()",
            "batches": "return MergedBatches(self)",
        },
        skipped=frozenset({"open", "close", "aclose"}),
    ),
    "Consumer": Face(
        is_opened=True,
        closes="Leaves the group, of a consumer that was opened without a block. Idempotent.",
        attributes={"group": "str", "member": "str", "stream": "str"},
        bodies={
            "__aiter__": "return self",
            "__anext__": _STEP,
            "next_record": _RECORD_STEP.format("self._inner"),
        },
        skipped=frozenset(
            {"note_group", "note_lost", "note_rejoined", "run", "begin", "leave", "close"}
        ),
    ),
    "RecordIterator": Face(
        home="stream.consuming.consumer",
        bodies={
            "__aiter__": "return self",
            "__anext__": _RECORD_STEP.format("self._inner._consumer"),
        },
    ),
    "Cursor": Face(
        is_opened=True,
        closes="Stores the position, and closes a cursor that was opened without a block.",
        attributes={"name": "str", "stream": "str", "position": "Position: self._to"},
        base="stream.aio.cursor_base:CursorBase",
        opened={"_to": "inner.position"},
        skipped=frozenset({"release", "close", "end", "run", "epoch", "failing_since_s"}),
        bodies={"advance": "self._advance(to)"},
    ),
    "Janitor": Face(is_made=True),
}
FUNCTIONS = ["create_namespace", "list_namespaces", "delete_namespace"]
"""Public functions, which take the client and are calls into the trio thread."""
HAND_WRITTEN = {
    "BatchIterator": "batches",
    "LedgerClient": "client",
    "MergedBatches": "merging",
    "PartitionTicket": "tickets",
    "Ticket": "tickets",
}
"""Public classes whose faces are written by hand, and their modules in stream/aio."""
