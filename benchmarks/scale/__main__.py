"""Simulates a large cluster and writes docs/scale.md: `python -m benchmarks.scale [options]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cyclopts import App

from benchmarks.children import ROOT
from benchmarks.scale.document import document
from benchmarks.scale.plots import plot
from benchmarks.scale.scenarios import Results, simulate
from benchmarks.scale.settings import FULL, MIB, ScaleSettings, checked


def scale(
    *,
    bookies: int = FULL.bookies,
    racks: int = FULL.racks,
    ledgers: int = FULL.ledgers,
    streams: int = FULL.streams,
    ledger_mib: int = FULL.ledger_bytes // MIB,
    copy_mib_per_s: int = FULL.copy_bytes_per_s // MIB,
    bookie_mib_per_s: int = FULL.bookie_bytes_per_s // MIB,
    metadata_reads_per_s: float = FULL.options.metadata_reads_per_s,
    operations_per_s: float = FULL.operations_per_s,
    failures_per_year: float = FULL.failures_per_year,
    seed: int = FULL.seed,
    processes: int = os.cpu_count() or 1,
    directory: Path = ROOT / "docs",
) -> None:
    """Simulate a cluster that loses bookies and heals, and write what that costs.

    Parameters
    ----------
    bookies
        Number of bookies.
    racks
        Number of racks; the bookies are spread over them evenly.
    ledgers
        Number of ledgers.
    streams
        Number of streams, each with one open ledger.
    ledger_mib
        Mean payload of a ledger, in MiB.
    copy_mib_per_s
        What a worker copies per second, in MiB.
    bookie_mib_per_s
        What a bookie reads, and what it writes, for copies per second, in MiB.
    metadata_reads_per_s
        Metadata that the auditor reads per second.
    operations_per_s
        Requests to the metadata store that all workers together send per second.
    failures_per_year
        How often a bookie loses its data.
    seed
        The same seed gives the same results.
    processes
        Number of processes.
    directory
        Where scale.md and scale.svg are written.
    """
    options = replace(FULL.options, metadata_reads_per_s=metadata_reads_per_s)
    settings = checked(
        ScaleSettings(
            bookies=bookies, racks=racks, ledgers=ledgers, streams=streams, seed=seed,
            ledger_bytes=ledger_mib * MIB, copy_bytes_per_s=copy_mib_per_s * MIB,
            bookie_bytes_per_s=bookie_mib_per_s * MIB, operations_per_s=operations_per_s,
            failures_per_year=failures_per_year, options=options,
        )
    )  # fmt: skip
    results = simulate(settings, processes)
    write(results, directory)
    print(f"{results.seconds:.0f} s in {processes} processes; written: {directory / 'scale.md'}")


def write(results: Results, directory: Path) -> None:
    """Prints the document, and writes it and its plots."""
    text = document(results)
    (directory / "scale.md").write_text(text, encoding="utf-8")
    (directory / "scale.svg").write_text(plot(results), encoding="utf-8")
    print(text)


def main(tokens: Sequence[str] | None = None) -> None:
    app = App(name="python -m benchmarks.scale", version_flags=[])
    app.default(scale)
    app(sys.argv[1:] if tokens is None else list(tokens))


if __name__ == "__main__":
    main()
