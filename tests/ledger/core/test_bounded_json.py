"""JSON whose cost is bounded before it is parsed: what is refused, and that nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.bounded_json import CONTAINERS_MAX, DEPTH_MAX, ELEMENTS_MAX, parse_json

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=60,
)


def depth_of(value: object) -> int:
    """The naive twin: how deep a parsed value is nested."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


@given(DOCUMENTS, st.booleans())
def test_what_is_within_the_limits_is_parsed_as_json_does(value: object, is_ascii: bool) -> None:
    assert depth_of(value) <= DEPTH_MAX
    data = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    try:
        expected = json.loads(data.decode())
    except UnicodeDecodeError:  # a lone surrogate, which is not UTF-8
        with pytest.raises(ValueError):
            parse_json(data)
        return
    assert parse_json(data) == expected


@given(
    st.lists(st.sampled_from(["[", '{"k":', '["]",', '["\\"]",', '["\\\\",'])), st.integers(0, 70)
)
def test_depth_is_measured_also_if_strings_hold_brackets(openings: list[str], more: int) -> None:
    opened = [*openings, *(["["] * more)]
    closings = "".join("}" if one[0] == "{" else "]" for one in reversed(opened))
    wide = ",".join(["[]"] * (DEPTH_MAX + 1))  # so that the depth is looked at
    data = f"[[{wide}],{''.join(opened)}1{closings}]".encode()
    if 1 + len(opened) <= DEPTH_MAX:
        assert parse_json(data) == json.loads(data)
    else:
        with pytest.raises(ValueError, match=f"nested over {DEPTH_MAX} deep"):
            parse_json(data)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"[" + b"[]," * CONTAINERS_MAX + b"1]", f"limit {CONTAINERS_MAX}"),
        (b"[" + b"1," * ELEMENTS_MAX + b"1]", f"limit {ELEMENTS_MAX}"),
        (b"[" * 500 + b"]" * 500, "nested over"),
        (b'["]",' * 500 + b"1" + b"]" * 500, "nested over"),
        (b"[" * 100_000, "nested over"),
        (b"[" * 33 + b"}" * 33, "do not match"),
        ("[1]".encode("utf-16"), "decode"),
        (b"\xff", "decode"),
        (b"[1", "Expecting"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_before_it_is_parsed(data: bytes, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        parse_json(data)
