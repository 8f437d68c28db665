"""Durations and sizes in the units that people write and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from ledger.units import duration_text, parse_duration_ms, parse_size_bytes, size_text


def test_durations_are_read() -> None:
    assert parse_duration_ms("7d") == 7 * 86_400_000
    assert parse_duration_ms("1h30m") == 5_400_000
    assert parse_duration_ms("90s") == 90_000
    assert parse_duration_ms("250ms") == parse_duration_ms(" 250 ") == 250
    for wrong in ("", "7", "7 days", "d", "-1s", "1.5h", "1x", "٣s", "9" * 30):
        if wrong != "7":
            with pytest.raises(InvalidArgument, match="write 7d"):
                parse_duration_ms(wrong)


def test_sizes_are_read() -> None:
    assert parse_size_bytes("10GiB") == 10 << 30
    assert parse_size_bytes("500 mb") == 500_000_000
    assert parse_size_bytes("4096") == 4096
    for wrong in ("", "GiB", "10 G", "-1", "1.5GiB", "10 GiBs"):
        with pytest.raises(InvalidArgument, match="write 10GiB"):
            parse_size_bytes(wrong)


def test_a_duration_beyond_all_bounds_is_refused_as_such() -> None:
    assert parse_duration_ms("13031248d") == 13_031_248 * 86_400_000
    for wrong in ("13031249d", "9999999999999d", "9" * 18, "999999999999999w1ms"):
        with pytest.raises(InvalidArgument, match="longer than 13,031,248 days"):
            parse_duration_ms(wrong)


@given(st.integers(0, 1 << 40))
def test_two_units_are_exact_when_read_back(milliseconds: int) -> None:
    text = duration_text(milliseconds).replace(" min", "m").replace(" ", "")
    assert 0 <= milliseconds - parse_duration_ms(text) < max(1000, milliseconds / 20)


def test_texts_for_people() -> None:
    assert [duration_text(n) for n in (0, 40, 999, 1000, 61_500, 90_000, 86_400_000, -5000)] == [
        "0 s", "40 ms", "999 ms", "1 s", "1 min 1 s", "1 min 30 s", "1 d", "-5 s",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 999, 1000, 1 << 20, 256 << 20, 1000 << 20, 5 << 50)] == [
        "0 B", "999 B", "0.98 KiB", "1.00 MiB", "256 MiB", "0.98 GiB", "5,120 TiB",
    ]  # fmt: skip
