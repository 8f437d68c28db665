"""Options of Spark are parsed into values, or refused with the accepted forms."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.options.options import (
    TASKS_VARIABLE,
    ZONE_VARIABLE,
    Positions,
    ReadOptions,
    Selection,
    WriteOptions,
)
from connectors.spark.options.security import CLUSTER_VARIABLE, setting_of
from connectors.spark.options.table import (
    READ_OPTIONS,
    SECURITY_OPTIONS,
    WRITE_OPTIONS,
    AppliesTo,
)
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions
from stream.core.position import (
    EARLIEST,
    LATEST,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
)

CLUSTER = "zk://host:2181/ledgers"
HERE = {CLUSTER_VARIABLE: CLUSTER}


def read(
    options: Mapping[str, str],
    environment: Mapping[str, str] = HERE,
    *,
    is_streaming: bool | None = False,
) -> ReadOptions:
    chosen = {"stream": "demo/clicks", **options}
    chosen = {name: chosen[name] for name in chosen if chosen[name]}
    return ReadOptions.parse(chosen, environment, is_streaming=is_streaming)


def write(options: Mapping[str, str], *, is_streaming: bool = False) -> WriteOptions:
    return WriteOptions.parse({"stream": "demo/out", **options}, HERE, is_streaming=is_streaming)


def error_of(options: Mapping[str, str], *, is_streaming: bool | None = False) -> str:
    with pytest.raises(InvalidArgument) as caught:
        read(options, is_streaming=is_streaming)
    return str(caught.value)


def test_defaults_are_as_the_table_says() -> None:
    batch, query = read({}), read({}, is_streaming=True)
    assert batch.starting == Positions(EARLIEST, {})
    assert query.starting == Positions(LATEST, {})
    assert batch.ending == Positions(LATEST, {})
    texts = {option.name: option.default for option in (*READ_OPTIONS, *WRITE_OPTIONS)}
    plain = {
        name: text for name, text in texts.items() if text.isalnum() and text not in {"all", "auto"}
    }
    assert (
        read({k: plain[k] for k in ("maxBytesPerTask", "failOnDataLoss", "rowsPerBatch")}) == batch
    )
    assert read({"maxTriggerDelay": plain["maxTriggerDelay"]}, is_streaming=True) == query
    assert write(
        {k: plain[k] for k in ("createStreams", "entryBytes", "maxLedgersPerTask")}
    ) == write({})


def test_values_are_typed_and_names_have_no_case() -> None:
    options = read(
        {
            "CLUSTER": "sqlite:///x/c.db", "maxbytespertask": "64m", "MinTasks": "8",
            "maxRecordsPerTrigger": "1_000", "maxBytesPerTrigger": "500 MB",
            "minRecordsPerTrigger": "10", "maxTriggerDelay": "1m30s", "failOnDataLoss": "False",
            "rowsPerBatch": "5", "columns": '["Value", "key"]',
        },
        is_streaming=True,
    )  # fmt: skip
    assert options.cluster.uri == "sqlite:///x/c.db"
    assert options.max_bytes_per_task == 64 << 20
    assert (options.min_tasks, options.rows_per_batch) == (8, 5)
    assert (options.max_records_per_trigger, options.min_records_per_trigger) == (1000, 10)
    assert options.max_bytes_per_trigger == 500_000_000
    assert options.max_trigger_delay_ms == 90_000
    assert options.fail_on_data_loss is False
    assert options.columns == ("value", "key")
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST), ("LATEST", LATEST), ("3:120:7", Position(3, 120, 7)),
        ("sequence=12", FromSequence(12)), ("time=1700000000000", FromTime(1_700_000_000_000)),
        ("time=2026-01-31T12:00:00Z", FromTime(1_769_860_800_000)),
        ("time=2026-01-31T13:00:00+01:00", FromTime(1_769_860_800_000)),
        ("time=2026-01-31T12:00", FromTime(1_769_860_800_000)),
        ("event-time=2026-01-31", FromEventTime(1_769_817_600_000)),
        ("event-time=1969-12-31", FromEventTime(-86_400_000)),
        ("event-time=-86400000", FromEventTime(-86_400_000)),
        ("time=2242-03-16T12:56:32.001Z", FromTime(8_589_934_592_001)),
        ("cursor=job", FromCursor("job")), (" end=100 ", FromEnd(100)),
    ],
)  # fmt: skip
def test_every_form_of_a_position(text: str, start: object) -> None:
    assert read({"startingPosition": text}, is_streaming=True).starting == Positions(start, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-03-29 01:30:00", "2026-03-29T00:30:00"),
        ("2026-03-29 02:30:00", "2026-03-29T01:30:00"),  # skipped by the clock: 03:30 there
        ("2026-03-29T03:30:00", "2026-03-29T01:30:00"),
        ("2026-10-25 02:30:00", "2026-10-25T00:30:00"),  # twice: the first of them
        ("2026-07-01", "2026-06-30T22:00:00"),
        ("2026-07-01T00:00:00Z", "2026-07-01T00:00:00"),
        ("2026-07-01T00:00:00+05:00", "2026-06-30T19:00:00"),
    ],
)
def test_times_without_a_zone_are_of_the_session(text: str, utc: str) -> None:
    expected = Positions(FromTime(datetime.fromisoformat(f"{utc}+00:00")), {})
    given = {"startingPosition": f"time={text}"}
    of_session = {ZONE_VARIABLE: "Europe/Berlin"}
    assert read(given, is_streaming=True, environment={**HERE, **of_session}).starting == expected
    of_option = {**given, "timezone": "Europe/Berlin"}
    other = {ZONE_VARIABLE: "Asia/Tokyo"}
    assert read(of_option, is_streaming=True, environment={**HERE, **other}).starting == expected


def test_a_zone_is_a_name_or_an_offset() -> None:
    given = {"startingPosition": "time=2026-07-01", "timeZone": "+02:00"}
    assert read(given, is_streaming=True).starting == Positions(FromTime(1_782_856_800_000), {})
    for wrong in ("Europe", "Mars/Phobos", "../etc/passwd", "+99:00"):
        with pytest.raises(InvalidArgument, match=r"timeZone=.*is no time zone"):
            read({**given, "timeZone": wrong}, is_streaming=True)


def test_positions_of_single_streams_and_of_their_partitions() -> None:
    index = read(
        {
            "stream": "", "streams": "demo/a, demo/b,demo/a",
            "startingPosition": '{"demo/a": "sequence=5", "demo/a#2": "end=1", "*": "earliest"}',
        },
        is_streaming=True,
    )  # fmt: skip
    assert index.selection == Selection(streams=("demo/a", "demo/b"))
    assert [index.starting.of(name) for name in ("demo/a", "demo/a#1", "demo/a#2", "demo/b")] == [
        FromSequence(5), FromSequence(5), FromEnd(1), EARLIEST,
    ]  # fmt: skip
    alone = read({"startingPosition": '{"demo/clicks": "end=2"}'}, is_streaming=True)
    assert alone.starting.everywhere is LATEST


def test_streams_are_named_in_one_of_four_ways() -> None:
    def selected(**options: str) -> Selection:
        return read({"stream": "", **options}).selection

    assert selected(path="demo/clicks") == Selection(streams=("demo/clicks",))
    assert selected(streams='["a/b", "c/d#1"]') == Selection(streams=("a/b", "c/d#1"))
    assert selected(paths='["a/b", "c/d"]') == Selection(streams=("a/b", "c/d"))
    found = selected(streamPattern="demo/click-*, other/[ab]?")
    assert found == Selection(patterns=("demo/click-*", "other/[ab]?"))
    by_namespace = found.by_namespace()
    assert by_namespace["demo"].select(["click-1", "views"]) == ["click-1"]
    assert by_namespace["other"].select(["a1", "c1"]) == ["a1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": ""}, ["no stream is named", "stream", "streams", "streamPattern", "load("]),
        ({"streams": "a/b"}, ["stream and streams are given", "exactly one"]),
        ({"path": "a/b"}, ["stream and path are given"]),
        ({"stream": "clicks"}, ["stream='clicks'", "two names", "NAMESPACE/STREAM"]),
        ({"stream": "demo/cl*"}, ["stream='demo/cl*'", "letters, digits"]),
        ({"stream": "", "streams": "a/b,"}, []),
        ({"stream": "", "streams": ","}, ["streams=','", "empty"]),
        ({"stream": "", "streams": '["a/b"'}, ["JSON list"]),
        ({"stream": "", "streams": "[1]"}, ["strings"]),
        ({"stream": "", "streamPattern": "*/clicks"}, ["only the stream may be a pattern"]),
        ({"stream": "", "streamPattern": "clicks"}, ["NAMESPACE/PATTERN"]),
        ({"startingPosition": "yesterday"}, ["'yesterday'", "earliest, latest", "sequence=N"]),
        ({"startingPosition": "sequence=-1"}, ["sequence=-1", "not a number"]),
        ({"startingPosition": "1:2"}, ["1:2", "three numbers"]),
        ({"startingPosition": "time=noon"}, ["'noon'", "2026-01-31T12:00:00Z"]),
        ({"startingPosition": "time=1960-01-01"}, ["before 1970"]),
        ({"startingPosition": "time=1767225600"}, ["in 1970", "1767225600000"]),
        ({"startingPosition": "time=20260131"}, ["in 1970", "2026-01-31"]),
        ({"startingPosition": "end=5", "endingPosition": "end=10"}, ["would read nothing"]),
        ({"provider": "x", "option.stream": "a/b"}, ["catalog", "CREATE TEMPORARY VIEW"]),
        ({"startingPosition": '{"demo/clicks": 7}'}, ["7", "not a string"]),
        ({"startingPosition": '{"demo/clicks": '}, ["JSON object"]),
        ({"startingPosition": '{"demo/views": "earliest"}'}, ["demo/views, which is not selected"]),
        ({"startingPosition": "latest"}, ["'latest'", "would read nothing", "end=N"]),
        ({"endingPosition": "earliest"}, ["'earliest'", "would read nothing"]),
        ({"startingPosition": "3:0:1", "endingPosition": "3:0:0"}, ["would read nothing"]),
        (
            {
                "startingPosition": '{"demo/clicks#1": "time=9", "*": "time=1"}',
                "endingPosition": "time=8",
            },
            ["of demo/clicks#1 is after", "would read nothing"],
        ),
        ({"stream": "", "paths": '["clicks"]'}, ["paths=", "two names"]),
        ({"stream": "", "streams": ",".join(f"n/s{n}" for n in range(101))}, ["streams=", "101"]),
        ({"columns": "value,kee"}, ["columns='value,kee'", "did you mean key?", "append_time"]),
        ({"columns": "key,key"}, ["named twice"]),
        ({"maxBytesPerTask": "64mm"}, ["maxBytesPerTask='64mm'", "not a size", "64MiB"]),
        ({"maxBytesPerTask": "0"}, ["at least 1 byte"]),
        ({"minTasks": "0"}, ["minTasks='0'", "1 or more"]),
        ({"minTasks": "two"}, ["minTasks='two'", "1 or more"]),
        ({"failOnDataLoss": "yes"}, ["failOnDataLoss='yes'", "true or false"]),
        ({"rowsPerBatch": "1.5"}, ["rowsPerBatch='1.5'", "integer"]),
        ({"progress": "loud"}, ["progress='loud'", "auto, true or false"]),
        ({"maxRecordsPerTrigger": "5"}, ["maxRecordsPerTrigger='5'", "only in readStream"]),
        ({"startingOffset": "earliest"}, ["'startingOffset'", "did you mean startingPosition?"]),
        ({"kafka.bootstrap.servers": "x"}, ["no option 'kafka.bootstrap.servers'", "cluster"]),
    ],
)  # fmt: skip
def test_a_wrong_option_is_explained(options: dict[str, str], words: list[str]) -> None:
    if not words:
        assert read(options).selection.streams
        return
    message = error_of(options)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingPosition": "end=5"}, ["only in read", "availableNow"]),
        ({"progress": "true"}, ["progress='true'", "only in read"]),
        (
            {"minRecordsPerTrigger": "9", "maxRecordsPerTrigger": "8"},
            ["9", "8", "no micro-batch", "Lower"],
        ),
        ({"maxTriggerDelay": "soon"}, ["maxTriggerDelay='soon'", "not a duration", "1m30s"]),
        ({"maxBytesPerTrigger": "-1"}, ["maxBytesPerTrigger='-1'"]),
    ],
)
def test_a_wrong_option_of_a_query_is_explained(options: dict[str, str], words: list[str]) -> None:
    message = error_of(options, is_streaming=True)
    assert [word for word in words if word not in message] == []


def test_rules_of_a_kind_of_read_are_checked_when_the_kind_is_known() -> None:
    for options in ({"endingPosition": "end=5"}, {"minRecordsPerTrigger": "9"}):
        read(options, is_streaming=None)
    read({"startingPosition": "latest"}, is_streaming=None)
    assert "no option 'strem'" in error_of({"strem": "x"}, is_streaming=None)


def test_the_cluster_comes_from_the_option_or_the_environment() -> None:
    assert read({}).cluster.uri == CLUSTER
    assert read({"cluster": "sqlite:///c.db"}).cluster.uri == "sqlite:///c.db"
    with pytest.raises(InvalidArgument, match=r"cluster is missing.*LEDGERSTREAM_CLUSTER.*zk://"):
        ReadOptions.parse({"stream": "a/b"}, {}, is_streaming=False)
    with pytest.raises(InvalidArgument, match="cluster is missing"):
        WriteOptions.parse({"stream": "a/b"}, {}, is_streaming=False)


def test_sparks_parallelism_is_the_default_of_min_tasks() -> None:
    assert read({}).min_tasks is None
    assert read({}).default_tasks == 1
    known = {**HERE, TASKS_VARIABLE: "16"}
    assert (read({}, known).min_tasks, read({}, known).default_tasks) == (None, 16)
    assert read({"minTasks": "16"}, known).min_tasks == 16


def test_options_of_a_sink() -> None:
    options = write(
        {
            "namespace": "other", "txnAppId": "job-1", "txnVersion": "0", "createStreams": "true",
            "sortWithinBatch": "event_time, key", "entryBytes": "256k", "maxLedgersPerTask": "4",
        }
    )  # fmt: skip
    assert (options.stream, options.namespace) == ("demo/out", "other")
    assert (options.txn_app_id, options.txn_version) == ("job-1", 0)
    assert options.sort_within_batch == ("event_time", "key")
    assert (options.create_streams, options.entry_bytes) == (True, 256 << 10)
    assert options.max_ledgers_per_task == 4
    query = write({"sinkId": "s", "checkpointLocation": "/x", "queryName": "q"}, is_streaming=True)
    assert query.sink_id == "s"
    assert WriteOptions.parse({}, HERE, is_streaming=False).stream is None
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "is_streaming", "words"),
    [
        ({"txnAppId": "a"}, False, ["txnAppId='a'", "without txnVersion"]),
        ({"txnVersion": "1"}, False, ["txnVersion='1'", "without txnAppId"]),
        ({"txnAppId": "a b", "txnVersion": "1"}, False, ["txnAppId='a b'", "letters, digits"]),
        ({"txnAppId": "a", "txnVersion": "-1"}, False, ["txnVersion='-1'", "0 or more"]),
        ({"sinkId": "a"}, False, ["sinkId='a'", "only in writeStream", "txnAppId"]),
        ({"txnAppId": "a", "txnVersion": "1"}, True, ["only in write", "sinkId"]),
        (
            {"sortWithinBatch": "sequence"},
            False,
            ["no column 'sequence'", "event_time, key, value"],
        ),
        ({"entryBytes": "64m"}, False, ["entryBytes='64m'", "4194304"]),
        ({"sinkid ": "a"}, True, ["no option 'sinkid '", "did you mean sinkId?"]),
        ({"startingPosition": "earliest"}, False, ["no option 'startingPosition' to write"]),
        ({"path": "demo/other"}, False, ["both name a stream"]),
    ],
)
def test_a_wrong_option_of_a_sink_is_explained(
    options: dict[str, str], is_streaming: bool, words: list[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        write(options, is_streaming=is_streaming)
    assert [word for word in words if word not in str(caught.value)] == []


def test_every_option_of_the_table_is_read() -> None:
    """A wrong value of any option is an error that names it: no known option is ignored."""
    for option in (*READ_OPTIONS, *SECURITY_OPTIONS):
        if option.name in ("cluster", "stream") or option.name.endswith("File"):
            continue
        message = error_of(
            {"stream": "" if option.name.startswith("stream") else "a/b", option.name: "?"},
            is_streaming=option.applies_to is AppliesTo.STREAMING,
        )
        assert option.name in message
        assert option.forms in message
    for option in WRITE_OPTIONS:
        if option.name == "cluster":
            continue
        with pytest.raises(InvalidArgument) as caught:
            write({option.name: "?"}, is_streaming=option.applies_to is AppliesTo.STREAMING)
        assert option.name in str(caught.value)


@given(
    st.text(max_size=40),
    st.sampled_from([option.name for option in (*READ_OPTIONS, *SECURITY_OPTIONS)]),
)
def test_any_text_is_parsed_or_refused(text: str, name: str) -> None:
    if text:
        for is_streaming in (False, True):
            with suppress(InvalidArgument):
                read({name: text}, is_streaming=is_streaming)


def test_security_is_kept_by_the_names_that_options_of_a_client_have() -> None:
    given = {
        "credentialsFile": "jobs.toml", "tls": "start_tls", "tlsCaFile": "/etc/ca.pem",
        "tlsChecksHostNames": "false", "metadataTls": "true", "zookeeperAcl": "creator",
    }  # fmt: skip
    expected = {
        "credentials_file": "jobs.toml", "tls": "start_tls", "tls_ca_file": "/etc/ca.pem",
        "tls_checks_host_names": False, "metadata_tls": True, "zookeeper_acl": "creator",
    }  # fmt: skip
    access = read(given).cluster
    assert dict(access.settings) == expected
    assert access == write({name.upper(): given[name] for name in given}).cluster
    assert str(access) == CLUSTER
    assert read({}).cluster.settings == ()
    both = "bookies:KRaEyaGTYz1grebzPq++B5LatGg=,clients:wgLgA6VSDjK73oWBTmOzOSRQiO4="
    assert read({"zookeeperAcl": both}).cluster.settings == (("zookeeper_acl", both),)


def test_each_option_of_security_is_one_of_a_client() -> None:
    settings = {setting_of(option.name) for option in SECURITY_OPTIONS}
    assert settings <= {field.name for field in fields(ClientOptions)}


@pytest.mark.parametrize(
    "name", ["password", "token", "secret", "clusterSecret", "user", "accessKey", "credentials"]
)
def test_a_secret_as_an_option_is_refused_and_not_quoted(name: str) -> None:
    message = error_of({name: "tops3cret"})
    assert "credentialsFile" in message
    assert "tops3cret" not in message
    content = error_of({"credentialsFile": 'user = "ann"\npassword = "tops3cret"'})
    assert "tops3cret" not in content
