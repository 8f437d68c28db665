"""Every option of the connector: name, default, accepted forms, meaning, and where it applies.

Error messages and the tables of docs/spark.md are made from it; reading the values is options.py.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from connectors.spark.options.values import START_FORMS, STREAM_FORM
from connectors.spark.options.values import nearest as nearest
from ledger.errors import InvalidArgument


class AppliesTo(enum.Enum):
    ALWAYS = ""
    BATCH = "batch"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    default: str
    """As people write it; empty: none."""
    forms: str
    meaning: str
    applies_to: AppliesTo = AppliesTo.ALWAYS


_SIZE = "a size: 64m, 64MiB, 500MB or a number of bytes"
_COUNT = "a whole number, 1 or more"
_FLAG = "true or false"
_CLUSTER = Option(
    "cluster",
    "`LEDGERSTREAM_CLUSTER` of the driver's environment",
    "a cluster URI: sqlite:///path/cluster.db or zk://host:2181/ledgers",
    "where the metadata of the cluster is; executors must reach it and the bookies too",
)

READ_OPTIONS = (
    _CLUSTER,
    Option("stream", "", STREAM_FORM, "one stream; `load(\"demo/clicks\")` says the same"),
    Option("streams", "", "demo/clicks,demo/views or a JSON list", "several streams"),
    Option(
        "streamPattern", "", "demo/click-*, several by comma; `*`, `?` and `[...]` in the stream",
        "all streams whose names match; a running query takes up new ones, and partitions that "
        "are added, from their beginning",
    ),
    Option(
        "startingPosition", "earliest; streaming: latest",
        f'{START_FORMS}; or JSON {{"demo/clicks": FORM, "*": FORM}}',
        "where reading begins; a query with a Spark checkpoint goes on where it was",
    ),
    Option(
        "endingPosition", "latest", f'{START_FORMS}; or JSON {{"demo/clicks": FORM, "*": FORM}}',
        "where reading ends: the first record that is not read", AppliesTo.BATCH,
    ),
    Option(
        "columns", "all", "names separated by commas, or a JSON list",
        "the columns of the DataFrame; what is not named is not built",
    ),
    Option("maxBytesPerTask", "128m", _SIZE, "a task reads about so much at most"),
    Option(
        "minTasks", "Spark's default parallelism after `register(spark)`, else 1", _COUNT,
        "what there is to read is cut into so many pieces at least, of whole entries; the default "
        "makes none of less than 256 KiB of a micro-batch",
    ),
    Option(
        "maxRecordsPerTrigger", "no limit", _COUNT,
        "a micro-batch has so many records at most, shared out fairly over the streams",
        AppliesTo.STREAMING,
    ),
    Option(
        "maxBytesPerTrigger", "no limit", _SIZE, "the same in bytes, to the entry",
        AppliesTo.STREAMING,
    ),
    Option(
        "minRecordsPerTrigger", "1", _COUNT,
        "a micro-batch waits for so many records, but not longer than `maxTriggerDelay`",
        AppliesTo.STREAMING,
    ),
    Option(
        "maxTriggerDelay", "15m", "a duration: 10s, 1m30s, 500ms or a number of milliseconds",
        "how long `minRecordsPerTrigger` may wait", AppliesTo.STREAMING,
    ),
    Option(
        "failOnDataLoss", "true", _FLAG,
        "records that were to be read and are gone: an error that says which (true), or go on "
        "with the first there is and count them (false)",
    ),
    Option(
        "pushFilters", "false", _FLAG,
        "take filters that Spark pushes down; only for a DataFrame that is used once, because "
        "Spark would read it the second time with the filters of the first", AppliesTo.BATCH,
    ),
    Option("rowsPerBatch", "262144", _COUNT, "rows of one Arrow batch at most"),
    Option(
        "progress", "auto", "auto, true or false",
        "a summary of what is read, on stderr; auto: if that is a terminal", AppliesTo.BATCH,
    ),
)  # fmt: skip

WRITE_OPTIONS = (
    _CLUSTER,
    Option("stream", "", STREAM_FORM,
           "the target of rows whose `stream` column is null or missing"),
    Option("namespace", "", "a namespace, like demo",
           "what a bare name in the `stream` column is in"),
    Option(
        "sinkId", "the query's id", "letters, digits, '.', '_' and '-'",
        "under which name the last batch is kept in the metadata of the cluster; of one query "
        "only", AppliesTo.STREAMING,
    ),
    Option(
        "txnAppId", "", "letters, digits, '.', '_' and '-'",
        "with `txnVersion`: this write is done once, however often it is tried", AppliesTo.BATCH,
    ),
    Option(
        "txnVersion", "", "a whole number, 0 or more",
        "grows from write to write of one `txnAppId`; in foreachBatch the number of the batch",
        AppliesTo.BATCH,
    ),
    Option(
        "sortWithinBatch", "", "event_time, key, value; several by comma",
        "the records of a batch stand in the stream in this order, over all tasks",
    ),
    Option("createStreams", "false", _FLAG, "make a stream that is missing; else it is an error"),
    Option("entryBytes", "1m", _SIZE, "records are sent in entries of about so much"),
    Option(
        "maxLedgersPerTask", "256", _COUNT,
        "a task may write to so many streams; more is an error",
    ),
)  # fmt: skip


def check_no_table(names: Collection[str]) -> None:
    """Raises InvalidArgument for the options (in lower case) of a table of Spark's catalog."""
    if "provider" in names and any(name.startswith("option.") for name in names):
        raise InvalidArgument(
            "streams cannot be tables of Spark's catalog: Spark hands over no options when such a "
            "table is read. Cure: CREATE TEMPORARY VIEW name USING ledgerstream OPTIONS (...)"
        )


SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname"})
"""What Spark passes on to a source or sink though it is meant for Spark itself."""
