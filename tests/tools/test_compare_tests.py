"""Renamed tests are found by what they do, and a lost one is noticed."""

from __future__ import annotations

from tools.compare_tests import functions_of, matched

BEFORE = """
def test_a_log_keeps_order():
    log = Log()
    log.append(b"1")
    assert log.values == [b"1"]

async def test_an_empty_log_has_no_end():
    assert Log().end is None

def helper():
    pass
"""
AFTER = """
def test_order_is_kept():
    log = Log()
    log.append(b"1")
    assert log.values == [b"1"]
"""


def test_a_renamed_test_is_matched_and_a_lost_one_is_not() -> None:
    old, new = functions_of(BEFORE), functions_of(AFTER)
    assert old.keys() == {"test_a_log_keeps_order", "test_an_empty_log_has_no_end"}
    assert matched(old, new) == {"test_a_log_keeps_order": "test_order_is_kept"}
