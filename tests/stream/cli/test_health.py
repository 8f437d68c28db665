"""The verdict of `ledgerstream status` for everything that it can observe."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.autorecovery.audit import CopyCounts, Count
from stream.cli.health import (
    BookieHealth,
    CursorHealth,
    HealingHealth,
    Health,
    NamespaceHealth,
    Observed,
    reasons_of,
    verdict_of,
)

MIB, GIB = 1 << 20, 1 << 30


def bookie(number: int, state: str = "up", **more: Any) -> BookieHealth:
    return BookieHealth(bookie=f"b{number}", state=state, **more)


def namespace(ensemble_size: int = 3, ack_quorum: int = 2) -> NamespaceHealth:
    return NamespaceHealth(
        namespace="demo", ensemble_size=ensemble_size, ack_quorum=ack_quorum, streams=1
    )


def observed(**changed: Any) -> Observed:
    usual: dict[str, Any] = {
        "bookies": [bookie(n, free_bytes=50 * GIB, total_bytes=100 * GIB) for n in (1, 2, 3)],
        "namespaces": [namespace()],
        "ledgers": 7,
        "ledgers_examined": 7,
        "healing": HealingHealth(auditor="b1"),
    }
    return Observed(**{**usual, **changed})


def test_a_whole_cluster_is_healthy_without_reasons() -> None:
    assert reasons_of(observed(), lag_ms_max=None) == []
    assert verdict_of([]) is Health.HEALTHY


@pytest.mark.parametrize(
    ("changed", "health", "text"),
    [
        (
            {"metadata_problem": "ZooKeeper was not reached"},
            Health.UNKNOWN,
            "metadata is out of reach: ZooKeeper was not reached",
        ),
        (
            {"bookies": [], "namespaces": []},
            Health.UNAVAILABLE,
            "no bookie has ever been registered",
        ),
        (
            {"bookies": [bookie(1), bookie(2), bookie(3), bookie(4, "down")]},
            Health.DEGRADED,
            "1 of 4 bookies is down: b4",
        ),
        (
            {"bookies": [bookie(1, "down"), bookie(2, "down")], "namespaces": []},
            Health.UNAVAILABLE,
            "all 2 bookies are down",
        ),
        (
            {"bookies": [bookie(n) for n in (1, 2, 3)] + [bookie(4, "read only")]},
            Health.DEGRADED,
            "bookie b4 is read-only",
        ),
        (
            {"bookies": [bookie(1, problem="no answer in 5 s"), bookie(2), bookie(3)]},
            Health.UNKNOWN,
            "bookie b1 is registered, and does not show its disks: no answer in 5 s",
        ),
        (
            {"bookies": [bookie(1, ledgers_in_repair=2), bookie(2), bookie(3)]},
            Health.DEGRADED,
            "bookie b1 repairs 2 ledgers",
        ),
        (
            {"bookies": [bookie(1, free_bytes=GIB, total_bytes=100 * GIB), bookie(2), bookie(3)]},
            Health.DEGRADED,
            "the disks of bookie b1 are 99% full, 1.00 GiB are free",
        ),
        (
            {"namespaces": [namespace(ensemble_size=5)]},
            Health.DEGRADED,
            "namespace demo: ensemble_size is 5, ack_quorum is 2: with 3 bookies up new segments "
            "have fewer copies, or none can begin",
        ),
        (
            {"namespaces": [namespace(ensemble_size=5, ack_quorum=4)]},
            Health.UNAVAILABLE,
            "namespace demo: ensemble_size is 5, ack_quorum is 4: with 3 bookies up nothing can be "
            "appended",
        ),
        ({"ledgers_unreadable": 1}, Health.UNAVAILABLE, "1 ledger cannot be read in full"),
        (
            {"copies": CopyCounts(below_write_quorum=Count(2, 4 * MIB))},
            Health.HEALING,
            "2 ledgers of 7 examined (4.00 MiB): fewer copies up than their write quorum",
        ),
        (
            {
                "copies": CopyCounts(below_write_quorum=Count(2, 4 * MIB)),
                "healing": HealingHealth(auditor="b1", bytes_per_s=MIB),
            },
            Health.HEALING,
            "2 ledgers of 7 examined (4.00 MiB): fewer copies up than their write quorum; "
            "1.00 MiB/s are copied, 4 s left",
        ),
        (
            {"copies": CopyCounts(below_ack_quorum=Count(1, 0))},
            Health.DANGER,
            "1 ledger of 7 examined (0 B): fewer copies up than their ack quorum",
        ),
        (
            {"copies": CopyCounts(without_copy=Count(1, 9))},
            Health.LOSS,
            "1 ledger of 7 examined (9 B): no copy, unless a lost bookie returns",
        ),
        (
            {"healing": HealingHealth(auditor="b1", ledgers_marked=3, oldest_mark_ms=0)},
            Health.HEALING,
            "3 ledgers are marked, because copies are missing; the oldest since "
            "1970-01-01T00:00:00.000Z",
        ),
        (
            {"healing": HealingHealth(auditor="b1", held={7: ("needs 3 bookies", False)})},
            Health.HEALING,
            "ledger 7: needs 3 bookies",
        ),
        (
            {"healing": HealingHealth(auditor="b1", held={7: ("no live copy", True)})},
            Health.LOSS,
            "ledger 7: no live copy",
        ),
        ({"problems": ["lag on demo/x: no"]}, Health.UNKNOWN, "lag on demo/x: no"),
    ],
)
def test_each_fault_has_its_verdict_and_reason(
    changed: dict[str, Any], health: Health, text: str
) -> None:
    assert reasons_of(observed(**changed), lag_ms_max=None) == [(health, text)]


def test_lag_is_judged_by_the_limit_that_is_given() -> None:
    cursors = [
        CursorHealth(
            cursor="billing",
            stream="demo/clicks",
            lag_records=1234,
            lag_seconds=seconds,
            lag_bytes=9,
        )
        for seconds in (600.0, 601.0)
    ]
    assert reasons_of(observed(cursors=cursors), lag_ms_max=None) == []
    assert reasons_of(observed(cursors=cursors), lag_ms_max=600_000) == [
        (Health.DEGRADED, "cursor billing of demo/clicks is 10 min 1 s (1,234 records) behind")
    ]


def test_nobody_who_heals_is_a_reason_only_if_copies_are_missing() -> None:
    copies = CopyCounts(below_write_quorum=Count(1, 1))
    assert reasons_of(observed(healing=HealingHealth(is_enabled=False)), lag_ms_max=None) == []
    for healing, text in (
        (HealingHealth(is_enabled=False), "auto-recovery is disabled. Cure: "),
        (HealingHealth(), "no process runs auto-recovery. Cure: "),
    ):
        [_, reason] = reasons_of(observed(copies=copies, healing=healing), lag_ms_max=None)
        assert reason.health is Health.DEGRADED
        assert reason.text.startswith(text)


def test_of_many_held_ledgers_some_are_named() -> None:
    held = dict.fromkeys(range(100), ("needs 3 bookies", False))
    reasons = reasons_of(observed(healing=HealingHealth(auditor="b1", held=held)), lag_ms_max=None)
    assert len(reasons) == 6
    assert reasons[-1].text == "95 more ledgers cannot be healed now"


def test_the_exit_codes_say_how_bad_it_is() -> None:
    assert [(one.name, one.exit_code) for one in Health] == [
        ("HEALTHY", 0), ("DEGRADED", 3), ("HEALING", 3), ("UNKNOWN", 4), ("UNAVAILABLE", 4),
        ("DANGER", 4), ("LOSS", 5),
    ]  # fmt: skip


def test_the_worst_reason_is_first_and_doubt_is_worse_than_few_copies() -> None:
    bad = observed(
        bookies=[bookie(1, "read only"), bookie(2, problem="silent"), bookie(3), bookie(4)],
        ledgers_unreadable=1,
    )
    reasons = reasons_of(bad, lag_ms_max=None)
    assert [reason.health for reason in reasons] == [
        Health.UNAVAILABLE,
        Health.UNKNOWN,
        Health.DEGRADED,
    ]
    assert verdict_of(reasons) is Health.UNAVAILABLE
    assert verdict_of(reasons[1:]) is Health.UNKNOWN
    assert verdict_of(reasons[2:]) is Health.DEGRADED
