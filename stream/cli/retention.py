"""`ledgerstream retention`: explains which segments are dropped, when and why. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, examples, print_json, remark, time_of

if TYPE_CHECKING:
    from stream.core.retention import RetentionPlan, SegmentPlan
    from stream.retention.policies import Consequence

app = App(
    name="retention",
    help="Explain what is kept, what goes, when and why.",
    help_epilogue=examples("ledgerstream retention explain demo"),
)

_SEGMENTS_SHOWN_MAX = 20
_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


@app.command(
    help_epilogue=examples(
        "ledgerstream retention explain demo", "ledgerstream retention explain demo/clicks"
    )
)
async def explain(
    stream: str,
    /,
    *,
    segments: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Explain what happens to each segment of NAMESPACE/STREAM, when and why.

    NAMESPACE alone gives a line per stream. Nothing is changed.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM, or NAMESPACE.
    segments
        A line for each segment, also if they are many. Without it, those with the same fate share
        a line then. Segments that are far from what changes next may share a line in any case.
    """
    from stream.cli.arguments import StreamName, parse_stream
    from stream.cli.connecting import connect
    from stream.retention.policies import plans_of

    if "/" not in stream:
        async with connect(cluster, stream) as namespace:
            plans = await namespace.what_if()
        output.show_list(
            [_summary(plan, is_for_people=not output.json) for plan in plans],
            title=f"retention of namespace {stream}",
            none="no streams",
        )
        warn(plans)
        return
    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        partitions = await namespace.partitions(name.stream)
        plans = await plans_of(namespace.client, await namespace.policy(), partitions)
    warn(plans)
    if output.json:
        print_json([plan_facts(plan) for plan in plans])
        return
    for plan in plans:
        title = StreamName(name.namespace, plan.stream)
        is_short = segments or len(plan.segments) <= _SEGMENTS_SHOWN_MAX
        output.show_list(
            [
                _run_row(run)
                for run in ([[one] for one in plan.segments] if is_short else _runs(plan.segments))
            ],
            title=f"retention of stream {title}",
            none=f"stream {title} has no segments yet",
        )
        if plan.segments:
            remark(_in_short(plan))


def warn(plans: Sequence[RetentionPlan]) -> None:
    """Prints what is wrong with the times of streams to stderr."""
    for plan in plans:
        for warning in plan.warnings:
            remark(f"warning: stream {plan.stream}: {warning}")


def plan_facts(plan: RetentionPlan) -> dict[str, Any]:
    """Returns a plan for programs: times in milliseconds, sizes in bytes. Neighbours with one fate
    may share a row, if they are in pages."""
    return {
        "stream": plan.stream,
        "now_ms": plan.now_ms,
        "deleted_ms": None if plan.deleted_ms < 0 else plan.deleted_ms,
        "begin": str(plan.begin),
        "next_ms": plan.next_ms,
        "warnings": list(plan.warnings),
        "segments": [
            {
                "segment": segment.number,
                "last_segment": segment.last_number,
                "count": segment.count,
                "ledger_id": None if segment.count > 1 else segment.ledger_id,
                "verdict": segment.verdict.value,
                "is_purged": segment.is_purged,
                "due_ms": segment.due_ms,
                "records": segment.records,
                "bytes": segment.nbytes,
                "newest_ms": None if segment.newest_ms < 0 else segment.newest_ms,
                "reason": segment.reason,
            }
            for segment in plan.segments
        ],
    }


def _runs(segments: Sequence[SegmentPlan]) -> list[list[SegmentPlan]]:
    """Returns neighbours with the same fate together."""
    return [list(run) for _, run in groupby(segments, key=_what)]


def _run_row(run: Sequence[SegmentPlan]) -> dict[str, Any]:
    """Returns one row for neighbours with the same fate: `when` and `why` are of the first one."""
    first, last = run[0], run[-1]
    is_open = last.newest_ms < 0
    sealed = [segment for segment in run if segment.newest_ms >= 0]
    is_one = first.number == last.last_number
    number = str(first.number) if is_one else f"{first.number}..{last.last_number}"
    return {
        "segment": number,
        "what": _what(first),
        "when": "now" if _is_now(first) else time_of(first.due_ms),
        "records": sum(segment.records for segment in sealed) if sealed else None,
        "bytes": sum(segment.nbytes for segment in sealed) if sealed else None,
        "newest record": None if is_open else time_of(last.newest_ms),
        "why": first.reason,
    }


def _what(segment: SegmentPlan) -> str:
    from stream.core.retention import Verdict

    match segment.verdict:
        case Verdict.KEEP:
            return "kept, then dropped" if segment.due_ms is not None else "kept"
        case Verdict.DROP:
            return "deleted" if segment.is_purged else "dropped"
        case Verdict.IN_TRASH:
            return "in the trash, then deleted"
        case Verdict.PURGE:
            return "deleted"


def _is_now(segment: SegmentPlan) -> bool:
    from stream.core.retention import Verdict

    return segment.verdict in (Verdict.DROP, Verdict.PURGE)


def _in_short(plan: RetentionPlan) -> str:
    from ledger.units import duration_text

    words = [f"the next sweep drops {amount(plan.dropped)} and deletes {amount(plan.purged)}"]
    if plan.dropped:
        words.append(f"the stream then begins at {plan.begin}")
    if plan.next_ms is not None:
        words.append(f"more is due in {duration_text(plan.next_ms - plan.now_ms)}")
    return "; ".join(words)


def amount(segments: Sequence[SegmentPlan]) -> str:
    """Returns text like "3 segments (1,234 records, 5.00 MiB)", or "nothing"."""
    from ledger.units import size_text

    if not segments:
        return "nothing"
    records = sum(segment.records for segment in segments)
    nbytes = sum(segment.nbytes for segment in segments)
    count = sum(segment.count for segment in segments)
    many = "1 segment" if count == 1 else f"{count:,} segments"
    return f"{many} ({records:,} records, {size_text(nbytes)})"


def _summary(plan: RetentionPlan, *, is_for_people: bool) -> dict[str, Any]:
    from stream.core.retention import Verdict

    by_verdict = {
        verdict: [segment for segment in plan.segments if segment.verdict is verdict]
        for verdict in Verdict
    }
    if is_for_people:
        return {
            "stream": plan.stream if plan.deleted_ms < 0 else f"{plan.stream} (deleted)",
            "kept": amount(by_verdict[Verdict.KEEP]),
            "dropped now": amount(by_verdict[Verdict.DROP]),
            "in the trash": amount(by_verdict[Verdict.IN_TRASH]),
            "deleted now": amount(plan.purged),
            "next": time_of(plan.next_ms),
        }
    return {
        "stream": plan.stream,
        "deleted_ms": None if plan.deleted_ms < 0 else plan.deleted_ms,
        "begin": str(plan.begin),
        **{
            f"segments_{verdict.name.lower()}": sum(segment.count for segment in segments)
            for verdict, segments in by_verdict.items()
        },
        "segments_purged_now": sum(segment.count for segment in plan.purged),
        "bytes_dropped_now": sum(segment.nbytes for segment in plan.dropped),
        "bytes_purged_now": sum(segment.nbytes for segment in plan.purged),
        "next_ms": plan.next_ms,
    }


def consequence_facts(change: Consequence, *, is_for_people: bool) -> dict[str, Any]:
    """Returns the changes by a new policy that the present one does not make."""
    plan = change.plan
    if is_for_people:
        first = (*change.dropped, *change.purged)[0]
        return {
            "stream": plan.stream if plan.deleted_ms < 0 else f"{plan.stream} (deleted)",
            "dropped": amount(change.dropped),
            "deleted for good": amount(change.purged),
            "begins at": None if plan.deleted_ms >= 0 else str(plan.begin),
            "why": first.reason,
        }
    return {
        "stream": plan.stream,
        "deleted_ms": None if plan.deleted_ms < 0 else plan.deleted_ms,
        "begin": str(plan.begin),
        "segments_dropped": _numbers(change.dropped),
        "segments_purged": _numbers(change.purged),
        "records_dropped": sum(segment.records for segment in change.dropped),
        "bytes_dropped": sum(segment.nbytes for segment in change.dropped),
        "bytes_purged": sum(segment.nbytes for segment in change.purged),
    }


def _numbers(segments: Sequence[SegmentPlan]) -> list[int | str]:
    return [
        one.number if one.count == 1 else f"{one.number}..{one.last_number}" for one in segments
    ]
