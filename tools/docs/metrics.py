"""Writes docs/metrics.md from the tables of metrics: `python -m tools.docs.metrics`.

A test checks that the document is up to date. To be run after adding a metric.
"""

from __future__ import annotations

from bookie.core.metrics import Metric, S
from bookie.monitoring.bookie_metrics import BOOKIE, JOURNAL, PREFIX
from bookie.monitoring.directory_metrics import DIRECTORY
from bookie.monitoring.healing_metrics import HEALING
from tests.tidy.checkout import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"

_HEAD = f"""\
# Metrics

Generated from the code by `make docs`; a test checks that it is up to date.

A bookie with an `http_port` exposes metrics at `/metrics`, in the text format of Prometheus or, if
the request accepts it, of OpenMetrics. `standalone` gives each bookie a port: see `http_ports` in
its `standalone.toml`. All names begin with `{PREFIX}`, which is omitted below. Sizes are
in bytes, times in seconds. Histograms have `_bucket`, `_count` and `_sum`.

Metrics cost nothing per entry: a scrape reads the bookie's own counters. Therefore the latency of
adds is that of groups, and reads from memory have no latency metric.

Apache BookKeeper's names are those of its Prometheus provider, with hyphens as `_`. Its times are
summaries; those of ledgerstream are histograms.

In addition there are `{PREFIX}about` (labels `bookie` and `software`), which is always 1, and
the standard `process_*` (memory, CPU, open files). Before the bookie serves there is only
`server_status`.

## What to look at first

| Question | Look at |
|---|---|
| is the journal's disk slow? | `journal_sync_seconds` and `journal_add_seconds` |
| do clients batch? | `journal_group_entries`, `adds_total` divided by `chunks_total` |
| what throttles the writers? | `waits_total` by `reason`, `throttled_seconds` |
| can the ledger disk keep up? | `checkpoint_seconds`, `checkpoint_entry_log_seconds` |
| do readers hit the caches? | `write_cache_hits_total`, `read_cache_hits_total`, `_misses_total` |
| are reads slow because of the disk? | `disk_read_seconds`, `read_wait_seconds`, `_work_seconds` |
| is space reclaimed? | `entry_log_bytes` and `entry_log_live_bytes`, `reclaimed_by_*` |
| is something damaged? | `entry_logs_missing`, `_set_aside`, `_stray`, `io_error` refused |
| may acknowledged entries be missing? | `ledgers_in_limbo` |
| do ledgers lack copies? | `ledgers_below_*`, `ledgers_without_copy`, `healing_held` |
| what would a power failure lose? | `journal_unsynced_bytes` where `journal_sync_data` is 0 |
"""
_HEALING = """
## Auto-recovery

Exported by bookies with `autorecovery = true`. Counters begin at 0 when the process starts, or
auto-recovery begins again after an error.

"""
_JOURNAL = """
## Each journal

Label `journal`: from 0, in the order of `journal_directories`.

"""
_DIRECTORY = """
## Each ledger directory

Label `directory`: from 0, in the order of `ledger_directories`.

"""


def _rows(metrics: tuple[Metric[S], ...]) -> str:
    lines = ["| Metric | Kind | Meaning | In Apache BookKeeper |\n|---|---|---|---|\n"]
    for one in metrics:
        labels = f" by `{'`, `'.join(one.labels)}`" if one.labels else ""
        apache = ", ".join(f"`{name}`" for name in one.apache.split(", ")) if one.apache else "-"
        lines.append(f"| `{one.name}` | {one.kind.value}{labels} | {one.help} | {apache} |\n")
    return "".join(lines)


def document() -> str:
    """Returns the text of docs/metrics.md."""
    return (
        f"{_HEAD}\n## The bookie\n\n{_rows(BOOKIE)}"
        f"{_HEALING}{_rows(HEALING)}"
        f"{_JOURNAL}{_rows(JOURNAL)}{_DIRECTORY}{_rows(DIRECTORY)}"
    )


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
