"""Parses Spark's options, which are text, into typed, frozen `ReadOptions` and `WriteOptions`.

Every error is an InvalidArgument that names the option, its value and the accepted forms. An
unknown option must never be ignored. Pure: the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.options import values
from connectors.spark.options.security import check_no_secret, cluster_access
from connectors.spark.options.table import (
    READ_OPTIONS,
    SECURITY_OPTIONS,
    SPARK_OPTIONS,
    WRITE_OPTIONS,
    AppliesTo,
    Option,
    check_no_table,
    nearest,
)
from connectors.spark.schema import COLUMNS, SORT_COLUMNS
from ledger.errors import InvalidArgument
from stream.core.entry.format import BODY_BYTES_MAX
from stream.core.names import check_name
from stream.core.position import EARLIEST, LATEST, Start
from stream.core.stream_patterns import StreamPatterns, is_pattern

TASKS_VARIABLE = "LEDGERSTREAM_SPARK_TASKS"
ZONE_VARIABLE = "LEDGERSTREAM_SPARK_TIME_ZONE"
TERMINAL_VARIABLE = "LEDGERSTREAM_SPARK_TERMINAL"
"""Environment variables by which `register(spark)` passes Spark's default parallelism, the time
zone of the session, and whether the driver's stderr is a terminal."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected streams: full names and patterns, "demo/clicks", "demo/click-*"."""

    streams: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def by_namespace(self) -> dict[str, StreamPatterns]:
        """Returns the names and patterns of each namespace, to be matched against its listing."""
        found: dict[str, list[str]] = {}
        for name in (*self.streams, *self.patterns):
            namespace, _, stream = name.partition("/")
            found.setdefault(namespace, []).append(stream)
        return {namespace: StreamPatterns(found[namespace]) for namespace in found}

    def __str__(self) -> str:
        return ", ".join((*self.streams, *self.patterns))


@dataclass(frozen=True, slots=True)
class Positions:
    """A position in each stream: one for all streams, and others by full name."""

    everywhere: Start
    named: Mapping[str, Start]

    def of(self, stream: str) -> Start:
        """Returns the position of a stream, or of its base stream, or the general one."""
        base = stream.partition("#")[0]
        return self.named.get(stream, self.named.get(base, self.everywhere))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    cluster: ClusterAccess
    selection: Selection
    is_streaming: bool
    starting: Positions
    ending: Positions
    """The first record that is not read (batch only)."""
    columns: tuple[str, ...] | None = None
    """The columns of the option, None means all. The schema that Spark passes takes precedence."""
    max_bytes_per_task: int = 128 << 20
    min_tasks: int | None = None
    """The value of the option."""
    default_tasks: int = 1
    """Spark's default parallelism, 1 if it is not known."""
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_records_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    fail_on_data_loss: bool = True
    cursor: str | None = None
    rows_per_batch: int = 262_144
    progress: str = "auto"
    push_filters: bool = False
    """ "auto", "true" or "false"."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        environment: Mapping[str, str],
        *,
        is_streaming: bool | None,
    ) -> ReadOptions:
        """Parses the options of a read. Raises InvalidArgument.

        Args:
            options: as Spark passes them; the case of names is ignored.
            environment: for the defaults of `cluster`, `minTasks` and `timeZone`.
            is_streaming: `spark.readStream` rather than `spark.read`; None: not known yet.
        """
        given = _GivenOptions(options, READ_OPTIONS, "read", is_streaming=is_streaming)
        default_start: Start = LATEST if is_streaming else EARLIEST
        minimum = given.get("minRecordsPerTrigger", values.count)
        maximum = given.get("maxRecordsPerTrigger", values.count)
        if minimum is not None and maximum is not None and minimum > maximum:
            raise InvalidArgument(
                f"option minRecordsPerTrigger={minimum} exceeds maxRecordsPerTrigger={maximum}: no "
                "micro-batch can satisfy both. Lower the minimum"
            )
        tasks = environment.get(TASKS_VARIABLE, "")
        options_read = cls(
            selection=_selection(given),
            cluster=cluster_access(given, environment),
            is_streaming=bool(is_streaming),
            starting=given.positions("startingPosition", default_start, environment),
            ending=given.positions("endingPosition", LATEST, environment),
            columns=given.get("columns", _columns),
            max_bytes_per_task=given.value("maxBytesPerTask", values.size_bytes, 128 << 20),
            min_tasks=given.get("minTasks", values.count),
            default_tasks=int(tasks) if tasks.isdigit() else 1,
            max_records_per_trigger=maximum,
            max_bytes_per_trigger=given.get("maxBytesPerTrigger", values.size_bytes),
            min_records_per_trigger=minimum,
            max_trigger_delay_ms=given.value("maxTriggerDelay", values.duration_ms, 15 * 60_000),
            fail_on_data_loss=given.value("failOnDataLoss", values.flag, True),
            cursor=given.get("cursor", _named("cursor")),
            rows_per_batch=given.value("rowsPerBatch", values.count, 262_144),
            progress=given.value("progress", _progress, "auto"),
            push_filters=given.value("pushFilters", values.flag, False),
        )
        _check_positions(options_read, is_batch=is_streaming is False)
        return options_read


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    cluster: ClusterAccess
    is_streaming: bool
    stream: str | None = None
    """Full name of the target of rows that name no stream."""
    namespace: str | None = None
    """The namespace of bare names in the `stream` column."""
    sink_id: str | None = None
    """Streaming only; None means the id of the query, which tasks send with their messages."""
    txn_app_id: str | None = None
    txn_version: int | None = None
    sort_within_batch: tuple[str, ...] = ()
    create_streams: bool = False
    entry_bytes: int = 1 << 20
    max_ledgers_per_task: int = 256
    small_result_bytes: int = 1 << 20
    query_name: str = ""
    checkpoint: str = ""

    @classmethod
    def parse(
        cls, options: Mapping[str, str], environment: Mapping[str, str], *, is_streaming: bool
    ) -> WriteOptions:
        """Parses the options of a write; `is_streaming` is `df.writeStream`, not `df.write`.

        Raises InvalidArgument.
        """
        given = _GivenOptions(options, WRITE_OPTIONS, "write", is_streaming=is_streaming)
        txn_app_id = given.get("txnAppId", _named("sink"))
        txn_version = given.get("txnVersion", values.version)
        if (txn_app_id is None) != (txn_version is None):
            present, missing = "txnAppId", "txnVersion"
            if txn_app_id is None:
                present, missing = missing, present
            raise InvalidArgument(
                f"option {present}={given.text(present)!r} is given without {missing}: both "
                f"together identify a write that is done once"
            )
        return cls(
            cluster=cluster_access(given, environment),
            is_streaming=is_streaming,
            stream=given.stream(),
            namespace=given.get("namespace", _named("namespace")),
            sink_id=given.get("sinkId", _named("sink")),
            txn_app_id=txn_app_id,
            txn_version=txn_version,
            sort_within_batch=given.value("sortWithinBatch", _sort_columns, ()),
            create_streams=given.value("createStreams", values.flag, False),
            entry_bytes=given.value("entryBytes", _entry_bytes, 1 << 20),
            max_ledgers_per_task=given.value("maxLedgersPerTask", values.count, 256),
            small_result_bytes=given.value("smallResultBytes", values.size_or_none, 1 << 20),
            query_name=given.text("queryName") or "",
            checkpoint=given.text("checkpointLocation") or "",
        )


class _GivenOptions:
    """The given options by their lower-case names. An unknown one is refused."""

    def __init__(
        self,
        options: Mapping[str, str],
        table: tuple[Option, ...],
        verb: str,
        *,
        is_streaming: bool | None,
    ) -> None:
        self._texts = {name.lower(): str(options[name]) for name in options}
        table = (*table, *SECURITY_OPTIONS)
        self._table = {option.name.lower(): option for option in table}
        names = [option.name for option in table]
        check_no_table(self._texts)
        check_no_secret(name for name in options if name.lower() not in self._table)
        for name in options:
            if name.lower() in SPARK_OPTIONS:
                continue
            option = self._table.get(name.lower())
            if option is None:
                meant = nearest(name, names)
                hint = f"did you mean {meant}? " if meant else ""
                raise InvalidArgument(
                    f"there is no option {name!r} to {verb} streams: {hint}"
                    f"Options are {', '.join(names)}"
                )
            if is_streaming is not None:
                _check_applies(option, self._texts[name.lower()], verb, is_streaming=is_streaming)

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower())

    def get(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except InvalidArgument as error:
            raise self.wrong(name, str(error)) from None

    def value(self, name: str, parse: Callable[[str], T], default: T) -> T:
        found = self.get(name, parse)
        return default if found is None else found

    def wrong(self, name: str, why: str) -> InvalidArgument:
        text = self._texts[name.lower()]
        option = self._table.get(name.lower())  # `path` and `paths` are Spark's
        accepted = "" if option is None else f". Accepted: {option.forms}"
        # Instead of the name of a file it may be what is in it.
        quoted = "" if name.endswith("File") else f"={text[:200]!r}"
        return InvalidArgument(f"option {name}{quoted}: {why}{accepted}")

    def stream(self) -> str | None:
        """Returns the single stream of the option `stream` or of the path."""
        if self.text("stream") is not None and self.text("path") is not None:
            raise InvalidArgument(
                f"option stream={self.text('stream')!r} and the path {self.text('path')!r} both "
                f"name a stream: give only one of them"
            )
        found = self.get("stream", values.stream_name)
        return self.get("path", values.stream_name) if found is None else found

    def positions(self, name: str, default: Start, environment: Mapping[str, str]) -> Positions:
        zone = self.get("timeZone", values.time_zone)
        zone = zone or values.time_zone(environment.get(ZONE_VARIABLE) or "UTC")
        nothing: tuple[Start | None, dict[str, Start]] = (None, {})
        everywhere, named = self.value(name, partial(values.starts, zone=zone), nothing)
        return Positions(default if everywhere is None else everywhere, named)


def _check_applies(option: Option, text: str, verb: str, *, is_streaming: bool) -> None:
    if (
        option.applies_to is AppliesTo.ALWAYS
        or (option.applies_to is AppliesTo.STREAMING) == is_streaming
    ):
        return
    here, there = f"{verb}Stream", verb
    if not is_streaming:
        here, there = there, here
    instead = {
        "endingPosition": "; stop the query, or use trigger(availableNow=True)",
        "sinkId": "; a batch write is identified by txnAppId and txnVersion",
        "txnAppId": "; Spark numbers the batches, and sinkId identifies the sink",
        "txnVersion": "; Spark numbers the batches, and sinkId identifies the sink",
    }.get(option.name, "")
    raise InvalidArgument(
        f"option {option.name}={text!r} has no meaning in {here}, only in {there}{instead}"
    )


def _selection(given: _GivenOptions) -> Selection:
    named = [name for name in ("stream", "path", "paths", "streams", "streamPattern")
             if given.text(name) is not None]  # fmt: skip
    if len(named) != 1:
        what = f"{' and '.join(named)} are given" if named else "no stream is named"
        raise InvalidArgument(
            f"{what}: give exactly one of the options stream (NAMESPACE/STREAM, also as "
            f'load("NAMESPACE/STREAM")), streams (separated by commas) and streamPattern'
        )
    if named[0] in ("stream", "path"):
        stream = given.stream()
        assert stream is not None
        return Selection(streams=(stream,))
    if named[0] == "streamPattern":
        selection = Selection(patterns=given.value("streamPattern", _patterns, ()))
    else:
        selection = Selection(streams=given.value(named[0], _stream_names, ()))
    try:
        selection.by_namespace()
    except InvalidArgument as error:
        raise given.wrong(named[0], f"{error} of one namespace") from None
    return selection


def _stream_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values.stream_name(item) for item in values.list_items(text)))


def _patterns(text: str) -> tuple[str, ...]:
    found = []
    for item in values.list_items(text):
        namespace, slash, pattern = item.partition("/")
        if not slash or not pattern:
            raise InvalidArgument(f"{item!r}: write NAMESPACE/PATTERN, like demo/click-*")
        if is_pattern(namespace):
            raise InvalidArgument(f"{item!r}: only the stream may be a pattern, not the namespace")
        check_name(namespace, "namespace")
        StreamPatterns(pattern)
        found.append(item)
    return tuple(dict.fromkeys(found))


def _columns(text: str) -> tuple[str, ...]:
    return values.known(text, COLUMNS)


def _sort_columns(text: str) -> tuple[str, ...]:
    return values.known(text, SORT_COLUMNS)


def _progress(text: str) -> str:
    return values.one_of(text, ("auto", "true", "false"))


def _named(what: str) -> Callable[[str], str]:
    return lambda text: check_name(text.strip(), what)


def _entry_bytes(text: str) -> int:
    size = values.size_bytes(text)
    if size > BODY_BYTES_MAX:
        raise InvalidArgument(f"exceeds {BODY_BYTES_MAX} bytes, the limit of an entry")
    return size


def _check_positions(options: ReadOptions, *, is_batch: bool) -> None:
    """Refuses positions with which nothing would be read, and those of streams not selected."""
    read = set(options.selection.streams)
    for name, positions in (
        ("startingPosition", options.starting),
        ("endingPosition", options.ending),
    ):
        if not options.selection.patterns:
            foreign = [each for each in positions.named if each.partition("#")[0] not in
                       {stream.partition("#")[0] for stream in read}]  # fmt: skip
            if foreign:
                raise InvalidArgument(
                    f"option {name} gives a position in {foreign[0]}, which is not selected. "
                    f"Selected: {options.selection}"
                )
    if is_batch:
        for name in ("", *options.starting.named, *options.ending.named):
            start, end = options.starting.of(name), options.ending.of(name)
            if values.is_behind(start, end):
                raise InvalidArgument(
                    f"option startingPosition{f' of {name}' if name else ''} is after "
                    f"endingPosition ({start} and {end}): a batch would read nothing"
                )
        if LATEST in (options.starting.everywhere, *options.starting.named.values()):
            raise InvalidArgument(
                "option startingPosition='latest': a batch ends there and would read nothing. "
                "Use end=N for the last N records"
            )
        if EARLIEST in (options.ending.everywhere, *options.ending.named.values()):
            raise InvalidArgument(
                "option endingPosition='earliest': a batch begins there and would read nothing"
            )
