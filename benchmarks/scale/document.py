"""Writes docs/scale.md from the results of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.scale import costs, tree
from benchmarks.scale.durability import chance
from benchmarks.scale.scenarios import COPY_RATES, GROWTH, Chance, Results, Run
from benchmarks.scale.settings import MIB

_LOSSES = ("one bookie", "a rack", "at random")


def document(results: Results) -> str:
    """Returns the text of docs/scale.md."""
    sections = (
        _head, _summary, _bandwidth, _operations, _skew, _writers, _chances, _changes, _tree,
        _model,
    )  # fmt: skip
    return (
        "\n".join(line for section in sections for line in [*section(results), ""]).rstrip() + "\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yields the lines of a table; the first column holds words, the others numbers."""
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def duration(seconds: float) -> str:
    """Returns a time for people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.1f} min"
    if seconds < 100 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def size(nbytes: float) -> str:
    """Returns a number of bytes for people, in decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes:.0f} B"


def probability(value: float) -> str:
    """Returns a chance for people."""
    if value >= 0.001:
        return f"{100 * value:.2g} %"
    return f"{value:.0e}" if value else "0"


def name_of(run: Run) -> str:
    """Returns the name of a loss with its size."""
    if run.bookies_lost == 1:
        return run.loss
    return f"{run.loss}: {run.bookies_lost} bookies"


def _head(results: Results) -> Iterator[str]:
    s = results.settings
    yield "# Scale: what a large cluster costs, and how fast it heals"
    yield ""
    yield (
        f"A simulation of {s.bookies:,} bookies in {s.racks} racks, {s.ledgers:,} ledgers and "
        f"{s.streams:,} streams, each with one open ledger. `python -m benchmarks.scale` runs it, "
        "and writes this page; every figure is from that run."
    )
    yield ""
    yield (
        "**Simulated with the code of the product**: which bookies count as lost, what the auditor "
        "concludes from the metadata of each ledger, which bookies are chosen for ensembles and "
        "copies, the plan for each ledger, the order of healing, how many marks each worker takes, "
        "and the changes of metadata that writers and workers make. **Not simulated**: bytes, "
        "disks and networks (a bookie holds counts; it reads and writes copies at a fixed rate), "
        "ZooKeeper itself (its requests are counted, and take a fixed time), users' traffic, and "
        "further failures during the healing. Times are therefore what the limits below permit, "
        "not measurements of machines. [Inputs](#inputs) lists what is assumed."
    )


def _summary(results: Results) -> Iterator[str]:
    s, rate = results.settings, results.settings.copy_bytes_per_s
    runs = [results.run(loss, rate) for loss in _LOSSES]
    yield "## After a loss"
    yield ""
    yield from table(
        ("Lost", "Ledgers with a copy less", "Bytes to copy", "The auditor begins after",
         "Last one found after", "All copies made after", "Mean time with a copy less",
         "Bookies that read", "that write", "Ledgers lost"),
        [
            (name_of(r), f"{r.ledgers:,}", size(r.bytes), duration(r.begun_s),
             duration(r.audited_s), duration(r.whole_s), duration(r.exposed_s), f"{r.sources:,}",
             f"{r.targets:,}", f"{r.lost_ledgers:,}")
            for r in runs
        ],
    )  # fmt: skip
    yield ""
    one = runs[0]
    reading_s = s.ledgers / s.options.metadata_reads_per_s
    yield (
        f"Each worker copies {rate // MIB} MiB/s. A single bookie is waited for "
        f"(`lost_bookie_recovery_delay_s`, {s.options.lost_bookie_recovery_delay_s:.0f} s); "
        f"several are not. The auditor reads the metadata of all ledgers, which at "
        f"{s.options.metadata_reads_per_s:,.0f} per second takes {duration(reading_s)}: of the "
        f"{duration(one.whole_s)} after the loss of one bookie {duration(one.audited_s)} are for "
        "waiting and finding. **With many ledgers, time to heal is time to find**: raise "
        "`metadata_reads_per_s` before you raise bandwidth, as far as the metadata store bears it."
    )
    yield ""
    yield "The fewest copies first: median time from the mark to the last copy, by copies left."
    yield ""
    yield from table(
        ("Lost", "Copies left", "Ledgers", "Median time"),
        [
            (name_of(run), left, f"{count:,}", duration(wait_s))
            for run in runs
            for left, (count, wait_s) in sorted(run.waits_s.items())
        ],
    )


def _bandwidth(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## Time to heal by bandwidth"
    yield ""
    rows = []
    for loss in _LOSSES:
        runs = [results.run(loss, rate) for rate in COPY_RATES]
        rows.append((name_of(runs[0]), *[duration(run.whole_s) for run in runs],
                     *[duration(run.whole_s - run.audited_s) for run in runs]))  # fmt: skip
    rates = [f"{rate // MIB} MiB/s" for rate in COPY_RATES]
    yield from table(
        ("Lost", *[f"All copies made, at {rate}" for rate in rates],
         *[f"of that after the last one was found, at {rate}" for rate in rates]),
        rows,
    )  # fmt: skip
    yield ""
    spread = results.run("one bookie", s.copy_bytes_per_s)
    local = results.run("one bookie", s.copy_bytes_per_s, "same rack")
    yield (
        "The rate is that of each worker (`copy_bytes_per_s`), one in each bookie. A bookie "
        f"reads and writes at most {s.bookie_bytes_per_s // MIB} MiB/s of copies."
    )
    yield ""
    yield (
        f"The copies of one lost bookie were made at {spread.targets:,} bookies, the busiest of "
        f"which wrote {spread.copies_skew:.1f} times the mean of all. If they were made in its "
        "rack, as writers of a policy of racks replace a bookie, it would be "
        f"{local.targets} bookies, and the busiest would write {local.copies_skew:.0f} times the "
        f"mean. All copies were there after {duration(spread.whole_s)}, and would be after "
        f"{duration(local.whole_s)}."
    )
    yield ""
    yield "![Operations of the metadata store, time to heal, and chance of loss](scale.svg)"


def _operations(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## Operations of the metadata store"
    yield ""
    rows = []
    for loss in (*_LOSSES, "decommission"):
        run = results.run(loss, s.copy_bytes_per_s)
        for sender in ("auditor", "workers", "writers", "views"):
            cost = run.costs.get(sender)
            if cost is not None:
                rows.append((f"{run.loss}: {sender}", f"{cost.reads:,}", f"{cost.writes:,}",
                             f"{run.most_per_s[sender]:,}",
                             f"{cost.total / max(1, run.ledgers):.1f}"))  # fmt: skip
    yield from table(
        ("Loss and sender", "Reads and lists", "Writes", "Most in a second", "Per ledger healed"),
        rows,
    )
    yield ""
    worst = max((results.run(loss, s.copy_bytes_per_s) for loss in _LOSSES),
                key=lambda run: run.marks_most)  # fmt: skip
    yield (
        f"The auditor sends at most {s.options.metadata_reads_per_s:,.0f} per second "
        f"(`metadata_reads_per_s`, and one step of its pass more), all workers together at most "
        f"{s.operations_per_s:,.0f}, of which each has its share. *Views*: when a bookie comes or "
        f"goes, each process looks who is there, which is not bounded: "
        f"{costs.VIEW.reads} reads times {s.bookies:,} processes. At the worst moment "
        f"{worst.marks_most:,} ledgers were marked and {worst.locks_most:,} locked. Locks that a "
        f"worker found taken: {worst.disputed:,}."
    )


def _skew(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## Load and space"
    yield ""
    yield "The largest over the mean, before the loss and after the healing:"
    yield ""
    rows = []
    for loss, placement in (
        ("one bookie", "racks"), ("one bookie", "racks, by weight"),
        ("a rack", "racks"), ("a rack", "racks, by weight"), ("at random", "racks"),
    ):  # fmt: skip
        r = results.run(loss, s.copy_bytes_per_s, placement)
        rows.append((f"{r.loss}, {placement}", f"{r.adds_skew[0]:.2f}", f"{r.adds_skew[1]:.2f}",
                     f"{r.fill_skew[0]:.2f}", f"{r.fill_skew[1]:.2f}", f"{r.copies_skew:.1f}",
                     f"{r.reads_skew:.1f}"))  # fmt: skip
    yield from table(
        ("Loss, placement", "Adds before", "Adds after", "Space before", "Space after",
         "Copies made", "Copies read"),
        rows,
    )  # fmt: skip
    yield ""
    yield (
        f"Space is the used part of a bookie's capacity; every fourth rack "
        f"({100 * s.large_part:.0f} % of the bookies) has twice the capacity of the others. By "
        "weight the fuller bookies get less, and the larger ones more of the adds: choose it where "
        "disks differ. Adds count open ledgers."
    )


def _writers(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## Writers"
    yield ""
    rows = []
    for loss in _LOSSES:
        run = results.run(loss, s.copy_bytes_per_s)
        at = sorted(run.changes_s)
        rows.append((name_of(run), f"{len(at):,}", f"{2 * len(at):,} and {len(at):,}",
                     f"{run.changes_per_s:,}", duration(at[len(at) // 2]),
                     duration(at[len(at) * 99 // 100]), f"{run.unsafe:,}"))  # fmt: skip
    yield from table(
        ("Lost", "Ensembles changed", "Reads and writes", "Most operations in a second",
         "Half of them after", "99 % after", "Appends that waited for it"),
        rows,
    )  # fmt: skip
    yield ""
    yield (
        f"A writer notices a lost bookie at its next append, {s.add_timeout_s:.0f} s after it "
        f"(`add_timeout_s`); streams are appended to every {s.append_interval_s:.0f} s on average. "
        "Appends continue meanwhile if an ack quorum of the ensemble is left; the last column "
        "counts the streams in which it was not. Writers that are idle for longer replace the "
        "bookie by themselves (`idle_replacement_delay_s`), which is not simulated."
    )


def _chances(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## The chance that a ledger loses all copies"
    yield ""

    def row(one: Chance) -> tuple[str, ...]:
        return (
            one.placement, f"{one.width:.0f}", f"{one.copysets:,}", duration(one.exposed_s),
            probability(chance(one.independent_per_year)),
            probability(chance(one.outage.chance * s.outages_per_year)),
            probability(chance(one.outage_expected * s.outages_per_year)),
            f"{one.outage.ledgers:,.1f}", f"{one.in_one_rack:,}",
        )  # fmt: skip

    yield from table(
        ("Placement", "Scatter width", "Copysets", "Time with a copy less",
         "Per year, independent failures", "Per year, power failures (drawn)",
         "the same (computed)", "Ledgers lost, if any", "Ledgers in one rack alone"),
        map(row, results.chances),
    )  # fmt: skip
    failed = s.outage_bookies
    copies = s.ensemble_size
    yield ""
    yield (
        "A *copyset* is a set of bookies that hold all copies of some ledger; the *scatter width* "
        "is the number of other bookies with which a bookie shares ledgers. "
        f"Independent failures: each bookie loses its data {s.failures_per_year:g} times per year "
        f"(f), and what it held has a copy less for the time T that was measured above; {copies} "
        f"bookies of a copyset are lost together {copies} f (f T)^{copies - 1} times per year. "
        f"Power failures: {s.outages_per_year:g} per year of the whole cluster, after which "
        f"{failed} bookies chosen at random ({100 * failed / s.bookies:.1f} %) do not return; "
        f"drawn {s.outage_trials:,} times for the ensembles of the simulation. That event, its one "
        "per cent and the idea of copysets are from A. Cidon, S. Rumble, R. Stutsman, S. Katti, "
        "J. Ousterhout and M. Rosenblum, *Copysets: Reducing the Frequency of Data Loss in Cloud "
        "Storage*, USENIX ATC 2013."
    )
    yield ""
    random, racks = results.chances[0], results.chances[1]
    yield (
        f"Placement over hosts alone has {random.in_one_rack:,} ledgers with all copies in one "
        f"rack, so the loss of any rack loses some; over racks it is {racks.in_one_rack:,}. A "
        "narrow scatter width makes a loss rarer and larger, and healing slower, because fewer "
        "bookies have the copies that are left. No policy of ledgerstream limits the width; the "
        "rows show what that would give."
    )


def _changes(results: Results) -> Iterator[str]:
    s = results.settings
    run = results.run("decommission", s.copy_bytes_per_s)
    yield "## Decommission and growth"
    yield ""
    yield (
        f"To empty one bookie took {duration(run.ended_s)}: {run.ledgers:,} ledgers, "
        f"{size(run.bytes)}. The last copy was made after {duration(run.whole_s)}; then a full "
        "pass over all metadata verifies that nothing names the bookie. The bookie itself is read "
        f"too: copies were read from {run.sources:,} bookies and written to {run.targets:,}."
    )
    yield ""
    yield (
        f"{100 * GROWTH:.0f} % more bookies, and then {100 * GROWTH:.0f} % more ledgers, each "
        "stream rolled to a new one; the largest over the mean. Nothing moves by itself:"
    )
    yield ""
    yield from table(
        ("Placement", "Adds before", "Adds, new bookies empty", "Adds after", "Space before",
         "Space, new bookies empty", "Space after", "New bookies' part of new ledgers"),
        [
            (one.placement, *[f"{v:.2f}" for v in one.adds], *[f"{v:.2f}" for v in one.fill],
             f"{100 * one.share_of_new:.1f} %")
            for one in results.growth
        ],
    )  # fmt: skip
    yield ""
    yield "A rebalance instead, as soon as the bookies are there:"
    yield ""
    yield from table(
        ("Placement", "Copies moved", "Bytes moved", "Space after",
         f"Time of one process at {s.copy_bytes_per_s // MIB} MiB/s"),
        [
            (one.placement, f"{one.copies_moved:,}", size(one.bytes_moved),
             f"{one.fill_balanced:.2f}", duration(one.bytes_moved / s.copy_bytes_per_s))
            for one in results.growth
        ],
    )  # fmt: skip


def _tree(results: Results) -> Iterator[str]:
    yield "## Size of the metadata"
    yield ""
    yield from table(
        ("Nodes", "Number", "Bytes of data", "Lists that show all", "Largest list"),
        [
            (kind.name, f"{kind.nodes:,}", size(kind.data_bytes), f"{kind.lists:,}",
             size(kind.largest_list) + (" **(too large)**" if kind.is_too_large else ""))
            for kind in results.kinds
        ],
    )  # fmt: skip
    total = sum(kind.nodes for kind in results.kinds)
    data = sum(kind.data_bytes for kind in results.kinds)
    yield ""
    yield (
        f"Together {total:,} nodes with {size(data)} of data, at the moment with the most marks. "
        f"ZooKeeper answers with at most {size(tree.LIST_BYTES_MAX)} (`jute.maxbuffer`, 1 MiB): a "
        f"list of children must fit. Names like those here permit {tree.streams_max():,} streams "
        f"in one namespace, and {tree.locks_max():,} ledgers that are healed at the same time, "
        "which is the product of workers and `ledgers_at_once`."
    )
    too_large = [kind.name for kind in results.kinds if kind.is_too_large]
    if too_large:
        yield ""
        yield (
            f"Too large is: {', '.join(too_large)}. Cure: several namespaces, or a larger "
            "`jute.maxbuffer` at all servers and clients."
        )


def _model(results: Results) -> Iterator[str]:
    s = results.settings
    yield "## Inputs"
    yield ""
    yield from table(
        ("Input", "Value"),
        [
            ("ensemble size, write quorum, ack quorum",
             f"{s.ensemble_size}, {s.write_quorum}, {s.ack_quorum}"),
            ("payload of a ledger, mean (log-normal, sigma 1), at most",
             f"{s.ledger_bytes // MIB} MiB, {s.ledger_bytes_max // MIB} MiB"),
            ("capacity of a bookie", size(s.capacity_bytes)),
            ("copies that a bookie reads, and writes, per second",
             f"{s.bookie_bytes_per_s // MIB} MiB"),
            ("copies of a worker per second", f"{s.copy_bytes_per_s // MIB} MiB"),
            ("ledgers that a worker heals at once", s.options.ledgers_at_once),
            ("metadata read by the auditor per second", f"{s.options.metadata_reads_per_s:,.0f}"),
            ("requests of all workers per second", f"{s.operations_per_s:,.0f}"),
            ("one request to the metadata store", f"{1000 * s.request_s:g} ms"),
            ("session timeout of a bookie", f"{s.session_timeout_s:g} s"),
            ("losses of a bookie per year", f"{s.failures_per_year:g}"),
            ("seed", s.seed),
        ],
    )  # fmt: skip
    yield ""
    yield (
        "Copies of one worker share its rate equally, and so do those that one bookie reads, and "
        "those that it writes; a copy is made when the slowest of the three has done its part. The "
        "source is the live holder that reads the fewest copies then. Rates, failures and sizes "
        "are assumptions: put in your own with the options of the command. The same seed gives "
        "the same results."
    )
