"""The rules for rolling a segment, checked against their simplest form."""

from __future__ import annotations

from stream.core.metadata.namespaces import (
    NamespaceMetadata,
    should_prepare,
    should_roll,
)

POLICY = NamespaceMetadata(name="n", roll_ms=1000, roll_bytes=1 << 16)


def test_a_segment_rolls_by_age_or_size_and_never_empty() -> None:
    for nbytes, now_ms, prepares, rolls in (
        (0, 10**6, False, False),
        (1, 499, False, False),
        (1, 500, True, False),
        (1, 999, True, False),
        (1, 1000, True, True),
        (1 << 15, 0, True, False),
        ((1 << 16) - 1, 0, True, False),
        (1 << 16, 0, True, True),
    ):
        facts = {"since_ms": 0, "nbytes": nbytes, "now_ms": now_ms}
        assert should_prepare(**facts, policy=POLICY) is prepares
        assert should_roll(**facts, policy=POLICY) is rolls
