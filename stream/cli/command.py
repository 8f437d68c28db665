"""The command `ledgerstream`, assembled from the sub-commands of all packages.

Sub-commands are named as strings and imported when they are called, so that `stream` never
imports `bookie`, and `--help` waits for nothing (docs/adr/0009-one-command.md). It is started by
`ledgerstream_entry.main`.
"""

from __future__ import annotations

from typing import Any

from cyclopts import App, Group

from ledgerstream_entry import installed_version

_CLUSTER = Group("Cluster", sort_key=1)
_RECORDS = Group("Records", sort_key=2)
_ADMINISTRATION = Group("Administration", sort_key=3)
_MEASURE = Group("Measure", sort_key=4)

COMMANDS: list[tuple[Group, str, str, str]] = [
    (_CLUSTER, "standalone", "bookie.cli.bookie:standalone", "Run a cluster on this machine."),
    (_CLUSTER, "bookie", "bookie.cli.bookie:app", "Run one bookie; list bookies."),
    (_RECORDS, "append", "stream.cli.records:append", "Append lines to a stream."),
    (_RECORDS, "read", "stream.cli.reading:read", "Read streams to their end."),
    (_RECORDS, "tail", "stream.cli.reading:tail", "Follow streams."),
    (_ADMINISTRATION, "namespace", "stream.cli.namespaces:app", "Create, list, show, set."),
    (_ADMINISTRATION, "stream", "stream.cli.verify:app", "Create, list, show, truncate, delete."),
    (_ADMINISTRATION, "cursor", "stream.cli.cursors:app", "List, show, set, delete."),
    (_ADMINISTRATION, "group", "stream.cli.groups:app", "Consumer groups: list, show, delete."),
    (_ADMINISTRATION, "sink", "stream.cli.sinks:app", "Batches of sinks: list, show, forget."),
    (_ADMINISTRATION, "retention", "stream.cli.retention:app", "Explain what goes when and why."),
    (_ADMINISTRATION, "ledger", "ledger.cli.ledgers:app", "The layer below streams."),
    (_ADMINISTRATION, "metadata", "ledger.cli.metadata:app", "Back up and restore the metadata."),
    (_ADMINISTRATION, "canary", "stream.cli.canary:canary", "Check promises all the time."),
    (_ADMINISTRATION, "janitor", "stream.cli.janitor:janitor", "Apply retention."),
    (_MEASURE, "bench", "stream.cli.bench:bench", "Run a benchmark."),
]


def build_app() -> App:
    app = App(
        name="ledgerstream",
        help="A durable, replicated streaming log.",
        help_epilogue="Start with: ledgerstream standalone --dir DIR",
        version=installed_version,
        backend="trio",
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for group, name, path, summary in COMMANDS:
        # Benchmarks have a parser of their own: it answers --help too.
        more: dict[str, Any] = {"help_flags": []} if name == "bench" else {}
        app.command(path, name=name, help=summary, group=group, **more)
    return app
