"""SASLprep (RFC 4013): one form of a password, however a keyboard or system composed it."""

from __future__ import annotations

import stringprep
from typing import Final
from unicodedata import ucd_3_2_0

from ledger.errors import InvalidArgument

_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # unassigned in Unicode 3.2: a stored string has none
)
PASSWORD_CHARS_MAX: Final = 1024


def saslprep(password: str) -> str:
    """Returns the password in the form that is hashed.

    Raises InvalidArgument for an empty one, one of more than `PASSWORD_CHARS_MAX` characters, and
    one with characters that RFC 4013 forbids. The error does not show it.
    """
    if len(password) > PASSWORD_CHARS_MAX:
        raise InvalidArgument(
            f"the password has {len(password)} characters, at most {PASSWORD_CHARS_MAX} are allowed"
        )
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c)
    )
    text = ucd_3_2_0.normalize("NFKC", mapped)
    if not text:
        raise InvalidArgument("the password is empty")
    for at, c in enumerate(text, 1):
        if any(is_in(c) for is_in in _PROHIBITED):
            raise InvalidArgument(
                f"character {at} of the password is a control character, or one that RFC 4013 does "
                "not allow in passwords. Cure: choose another password"
            )
    is_right_to_left = [stringprep.in_table_d1(c) for c in text]
    if any(is_right_to_left) and (
        any(stringprep.in_table_d2(c) for c in text)
        or not (is_right_to_left[0] and is_right_to_left[-1])
    ):
        raise InvalidArgument(
            "the password mixes scripts of both directions, which RFC 4013 does not allow. Cure: "
            "choose another password"
        )
    return text
