"""Every option of the connector: name, default, accepted forms, meaning, and where it applies.

Error messages and the tables of docs/spark.md are generated from it; options.py parses the values.
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
    """As users write it; empty means that there is no default."""
    forms: str
    meaning: str
    applies_to: AppliesTo = AppliesTo.ALWAYS


_SIZE = "a size: 64m, 64MiB, 500MB or a number of bytes"
_COUNT = "an integer, 1 or more"
_FLAG = "true or false"
CLUSTER_OPTION = Option(
    "cluster",
    "`LEDGERSTREAM_CLUSTER` of the driver's environment",
    "a cluster URI: sqlite:///path/cluster.db or zk://host:2181/ledgers",
    "where the metadata of the cluster is; executors must reach it, and the bookies",
)

READ_OPTIONS = (
    CLUSTER_OPTION,
    Option("stream", "", STREAM_FORM, "one stream; `load(\"demo/clicks\")` means the same"),
    Option("streams", "", "demo/clicks,demo/views or a JSON list", "several streams"),
    Option(
        "streamPattern", "",
        "demo/click-*, separated by commas; `*`, `?` and `[...]` in the stream",
        "all streams whose names match; a running query reads new streams, and added partitions, "
        "from their beginning",
    ),
    Option(
        "startingPosition", "earliest; streaming: latest",
        f'{START_FORMS}; or JSON {{"demo/clicks": FORM, "*": FORM}}',
        "where reading begins; a query with a Spark checkpoint resumes from it",
    ),
    Option(
        "endingPosition", "latest", f'{START_FORMS}; or JSON {{"demo/clicks": FORM, "*": FORM}}',
        "where reading ends: the first record that is not read any more", AppliesTo.BATCH,
    ),
    Option(
        "timeZone", "`spark.sql.session.timeZone` at the time of `register(spark)`, else UTC",
        "a name like Europe/Berlin", "the zone of times without one in positions",
    ),
    Option(
        "columns", "all", "names separated by commas, or a JSON list",
        "the columns of the DataFrame; other columns are not built",
    ),
    Option("maxBytesPerTask", "128m", _SIZE, "the approximate maximum that one task reads"),
    Option(
        "minTasks", "Spark's default parallelism after `register(spark)`, else 1", _COUNT,
        "the minimum number of tasks; a task reads whole entries. With the default, a task of a "
        "micro-batch is not smaller than 256 KiB",
    ),
    Option(
        "maxRecordsPerTrigger", "no limit", _COUNT,
        "the maximum number of records of a micro-batch, divided fairly among the streams",
        AppliesTo.STREAMING,
    ),
    Option(
        "maxBytesPerTrigger", "no limit", _SIZE,
        "the maximum size of a micro-batch, divided in the same way",
        AppliesTo.STREAMING,
    ),
    Option(
        "minRecordsPerTrigger", "1", _COUNT,
        "a micro-batch waits for this number of records, but not longer than `maxTriggerDelay`",
        AppliesTo.STREAMING,
    ),
    Option(
        "maxTriggerDelay", "15m", "a duration: 10s, 1m30s, 500ms or a number of milliseconds",
        "how long a micro-batch waits for `minRecordsPerTrigger`", AppliesTo.STREAMING,
    ),
    Option(
        "failOnDataLoss", "true", _FLAG,
        "what happens if unread records were deleted: the query fails with an error that names "
        "them (true), or continues at the first available record and counts them (false)",
    ),
    Option(
        "cursor", "", "letters, digits, '.', '_' and '-'",
        "a cursor of each stream that follows the checkpoint, so that retention can wait for the "
        "query; it must belong to one query only, and is created if it is missing",
        AppliesTo.STREAMING,
    ),
    Option(
        "pushFilters", "false", _FLAG,
        "accept filters that Spark pushes down; only for a DataFrame that is used once, because "
        "Spark would apply the filters of the first use to the second", AppliesTo.BATCH,
    ),
    Option("rowsPerBatch", "262144", _COUNT, "the maximum number of rows of an Arrow batch"),
    Option(
        "progress", "auto", "auto, true or false",
        "print a summary of what is read on stderr; auto: if it is a terminal", AppliesTo.BATCH,
    ),
)  # fmt: skip

WRITE_OPTIONS = (
    CLUSTER_OPTION,
    Option("stream", "", STREAM_FORM,
           "the target of rows whose `stream` column is null or missing"),
    Option("namespace", "", "a namespace, like demo",
           "the namespace of bare names in the `stream` column"),
    Option(
        "sinkId", "the query's id", "letters, digits, '.', '_' and '-'",
        "the name under which the cluster's metadata records the last batch; must belong to one "
        "query only", AppliesTo.STREAMING,
    ),
    Option(
        "txnAppId", "", "letters, digits, '.', '_' and '-'",
        "with `txnVersion`: the write is done exactly once, however often it is retried",
        AppliesTo.BATCH,
    ),
    Option(
        "txnVersion", "", "an integer, 0 or more",
        "must increase with each write of a `txnAppId`; in foreachBatch the number of the batch",
        AppliesTo.BATCH,
    ),
    Option(
        "sortWithinBatch", "", "event_time, key, value; separated by commas",
        "the columns by which the records of a batch are sorted, over all tasks",
    ),
    Option("createStreams", "false", _FLAG,
           "whether to create missing streams; otherwise they are an error"),
    Option("entryBytes", "1m", _SIZE, "the approximate size of the entries that hold the records"),
    Option(
        "maxLedgersPerTask", "256", _COUNT,
        "the maximum number of streams that one task may write to; more is an error",
    ),
    Option(
        "smallResultBytes", "1m", "a size: 64m, 64MiB, 500MB or a number of bytes; 0: none",
        "a task whose rows have at most this size returns them to the driver, which writes those "
        "of all tasks as one segment per stream; task number n at most 32 MiB / (n + 1)",
    ),
)  # fmt: skip


_FILE = "a path that every machine has, or the name of a file of --files"

SECURITY_OPTIONS = (
    Option(
        "credentialsFile", "`LEDGERSTREAM_CREDENTIALS` of each process",
        _FILE, "TOML with the user and how connections are encrypted, as for the command",
    ),
    Option(
        "tls", "what the file says, else off", "off, start_tls or direct",
        "whether connections to bookies are encrypted, on their ordinary port or a port for TLS",
    ),
    Option("tlsCaFile", "the system's authorities", _FILE,
           "PEM file with the authorities of which certificates of bookies are accepted"),
    Option("tlsCertificateFile", "", _FILE, "PEM file with the client's own certificate"),
    Option("tlsKeyFile", "the certificate's file", _FILE, "PEM file with its private key"),
    Option("tlsKeyPasswordFile", "", _FILE, "the password of an encrypted key"),
    Option("tlsChecksHostNames", "true", _FLAG,
           "whether a bookie's certificate must be for its host"),
    Option("metadataTls", "false", _FLAG, "whether connections to ZooKeeper are encrypted"),
    Option("clusterSecretFile", "`LEDGERSTREAM_CLUSTER_SECRET_FILE` of each process", _FILE,
           "the secret from which keys of ledgers are derived, if the cluster has one"),
    Option("zookeeperCredentialsFile",
           "`LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE` of each process", _FILE,
           "user and password for ZooKeeper"),
    Option("zookeeperAcl", "`LEDGERSTREAM_ZOOKEEPER_ACL` of each process, else open",
           "open, creator or OWNERS-ID,CLIENTS-ID", "who may use the nodes that are made there"),
)  # fmt: skip
"""Of reading and writing. None of them holds a secret, because Spark keeps options in its plans."""


def check_no_table(names: Collection[str]) -> None:
    """Raises InvalidArgument for the options (in lower case) of a table in Spark's catalog."""
    if "provider" in names and any(name.startswith("option.") for name in names):
        raise InvalidArgument(
            "streams cannot be tables of Spark's catalog: Spark passes no options when such a "
            "table is read. Cure: CREATE TEMPORARY VIEW name USING ledgerstream OPTIONS (...)"
        )


SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname"})
"""Options for Spark itself, which Spark also passes to a source or sink."""
