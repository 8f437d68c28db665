"""How long a connection stays that of its user: as long as what it was authenticated by. Pure.

A password lasts until it is changed or its user deleted, a token and a certificate until they
expire. What is not known must end nothing: a user that cannot be read, or is damaged, is no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a session rests on."""

    user: str
    mechanism: str
    secret: object = field(default=None, repr=False)
    """What recognised the password, as the bookie had read it; None if there was none."""
    generation: int = 0
    """That of the users when `secret` was read."""
    expires_at_s: float = math.inf
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SessionEnd(Generic[KeyT]):
    """A session that must end."""

    session: KeyT
    proof: Proof
    cause: str


def expired(
    sessions: Iterable[tuple[KeyT, Proof]], now_s: float
) -> tuple[list[SessionEnd[KeyT]], float]:
    """Returns the sessions whose token or certificate has expired, and when the next one does."""
    ends: list[SessionEnd[KeyT]] = []
    next_at_s = math.inf
    for session, proof in sessions:
        if proof.expires_at_s <= now_s:
            what = f"the {proof.mechanism.lower()} of {proof.user} has expired"
            ends.append(SessionEnd(session, proof, what))
        else:
            next_at_s = min(next_at_s, proof.expires_at_s)
    return ends, next_at_s


def with_passwords(sessions: Iterable[tuple[KeyT, Proof]]) -> dict[str, list[tuple[KeyT, Proof]]]:
    """Returns the sessions that rest on passwords, by user."""
    found: dict[str, list[tuple[KeyT, Proof]]] = {}
    for session, proof in sessions:
        if proof.secret is not None:
            found.setdefault(proof.user, []).append((session, proof))
    return found


def outdated(
    sessions: Iterable[tuple[KeyT, Proof]], secrets: dict[str, object] | None
) -> Iterator[SessionEnd[KeyT]]:
    """Yields those of one user's sessions that rest on a secret which is not the present one.
    `secrets` are those by mechanism; None: the user was deleted."""
    for session, proof in sessions:
        if secrets is None:
            yield SessionEnd(session, proof, f"user {proof.user} was deleted")
        elif secrets.get(proof.mechanism) != proof.secret:
            yield SessionEnd(session, proof, f"the password of {proof.user} was changed")
