"""`ledgerstream canary`: checks continuously that a cluster keeps its guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.cli.output import (
    AtLeastOne,
    AtLeastZero,
    ClusterOption,
    PositiveSeconds,
    SecondsOrZero,
    print_json,
    remark,
)

if TYPE_CHECKING:
    from stream.canary import CanaryRound

_CLUSTER = ClusterOption()
_SEVERITY = {
    "DAMAGE": "VIOLATION",
    "DOUBT": "trouble",
    "REDUCED": "fewer copies",
}


async def canary(
    stream: str,
    /,
    *,
    interval_s: SecondsOrZero = 10.0,
    rounds: AtLeastZero | None = None,
    timeout_s: PositiveSeconds = 30.0,
    record_bytes: AtLeastOne = 256,
    remembered: AtLeastZero = 1000,
    stop_on_violation: bool = False,
    cluster: ClusterOption = _CLUSTER,
) -> int:
    """Append, follow and verify a record repeatedly. Print a line of JSON for each round.

    Alerts go to stderr. Creates the stream if it is missing; only the canary may use it, because
    it deletes records that it no longer checks. Exit codes with --rounds and --stop-on-violation:
    0 no fault, 3 a guarantee was broken, 4 an operation failed or a result is unknown, 5 fewer
    copies than required.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    interval_s
        Seconds from the end of a round to the next.
    rounds
        Stop after N rounds.
    timeout_s
        Most seconds that each of append, follow and verify may take.
    record_bytes
        Size of a record.
    remembered
        Number of earlier records kept; each round verifies a random one of them again.
    stop_on_violation
        Stop when a guarantee was broken.
    """
    from stream.canary import Canary, CanaryOptions
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.cli.verify import EXIT_CODES

    name = parse_stream(stream)
    options = CanaryOptions(
        interval_s=interval_s,
        timeout_s=timeout_s,
        record_bytes=record_bytes,
        remembered=remembered,
    )

    def on_round(report: CanaryRound) -> None:
        print_json(report.as_dict())
        for verdict, text in report.alerts:
            remark(f"{_SEVERITY[verdict.name]}: {name}: round {report.number}: {text}")

    async with connect(cluster, name) as namespace:
        if await namespace.ensure():
            remark(f"namespace {name.namespace} is new, with the default policy")
        checking = Canary(namespace, name.stream, options)
        verdict = await checking.run(on_round, rounds=rounds, stop_on_violation=stop_on_violation)
    return EXIT_CODES[verdict.name]
