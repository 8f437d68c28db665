"""Who may do what: roles that users have on namespaces and on the cluster, decided and explained.

What is not granted is refused. A role includes the smaller ones of its kind: `manage` includes
`write`, which includes `read`; `admin` includes all. A ledger that belongs to no namespace, like
those of Apache's clients, needs the role `ledger`. Must never allow more when a grant is removed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from ledger.core.authentication.names import USER_CHARS_MAX
from ledger.errors import InvalidArgument

STREAM_TAG: Final = "ledgerstream.stream"
"""Key in the custom metadata of every ledger of a stream: "namespace/stream". By it bookies know
the namespace of a ledger, and janitors find orphans."""
GRANTS_MAX: Final = 10_000
PATTERN_CHARS_MAX: Final = 200
_UNREADABLE: Final = "\ufffd"
"""The namespace of a ledger whose tag names none. Keys must not confuse it with no namespace."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9._*-]*", re.ASCII)


class Role(enum.Enum):
    """What a user may do. The values are stored."""

    READ = "read"
    """Read records: entries, LACs, lists of entries."""
    WRITE = "write"
    """Append, take over and recover: adds, fences, explicit LACs."""
    MANAGE = "manage"
    """Create and delete streams and change the policy, which are changes of the metadata."""
    LEDGER = "ledger"
    """Read and write ledgers that belong to no namespace."""
    OPERATE = "operate"
    """Look after bookies: metrics, reports, garbage collection, read-only."""
    ADMIN = "admin"
    """Everything, on every namespace, ledger and bookie. Replication workers need it."""

    @property
    def is_of_namespace(self) -> bool:
        """Whether the role is granted on a namespace, not on the cluster."""
        return self in _RANKS


_RANKS: Final = {Role.READ: 1, Role.WRITE: 2, Role.MANAGE: 3}
"""Each includes those with a smaller number."""
NAMESPACE_ROLES: Final = tuple(_RANKS)
CLUSTER_ROLES: Final = (Role.LEDGER, Role.OPERATE, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Grant:
    """One role of one user: on a namespace, on all whose names match a pattern in which `*` stands
    for any characters, or, with `namespace` "", on the cluster.

    Raises InvalidArgument for a user or namespace that cannot exist, and for a role without the
    namespace that it needs or with one that it does not have.
    """

    user: str
    role: Role
    namespace: str = ""

    def __post_init__(self) -> None:
        check_user(self.user)
        if not self.role.is_of_namespace:
            if self.namespace:
                raise InvalidArgument(
                    f"the role {self.role.value} is on the whole cluster, not on a namespace: leave"
                    f" {self.namespace!r} out"
                )
            return
        if not self.namespace:
            raise InvalidArgument(
                f"the role {self.role.value} is on a namespace: name one, or a pattern like team-*"
            )
        check_pattern(self.namespace)

    @property
    def is_pattern(self) -> bool:
        return "*" in self.namespace

    def gives(self, role: Role, namespace: str | None = None) -> bool:
        """Returns whether this grant alone allows what needs `role`: on `namespace`, or, with None,
        on the cluster."""
        if self.role is Role.ADMIN:
            return True
        if not role.is_of_namespace or namespace is None:
            return self.role is role and not role.is_of_namespace
        return (
            self.role.is_of_namespace
            and _RANKS[self.role] >= _RANKS[role]
            and matches(self.namespace, namespace)
        )

    def __str__(self) -> str:
        return f"{self.role.value} on {self.namespace or 'the cluster'}"


def check_user(user: str) -> str:
    """Returns the name, or raises InvalidArgument if no user can have it."""
    if not 1 <= len(user) <= USER_CHARS_MAX:
        raise InvalidArgument(
            f"a user's name has 1 to {USER_CHARS_MAX} characters, this one {len(user)}"
        )
    if not user.isprintable() or user != user.strip():
        raise InvalidArgument(
            f"user {user!r}: a name has printable characters, and no space at its ends"
        )
    return user


def check_pattern(namespace: str) -> str:
    """Returns the namespace or pattern, or raises InvalidArgument if no namespace can match it."""
    if len(namespace) > PATTERN_CHARS_MAX or not _PATTERN.fullmatch(namespace):
        raise InvalidArgument(
            f"namespace {namespace[: PATTERN_CHARS_MAX + 1]!r}: use letters, digits, '.', '_' and"
            f" '-' (ASCII), at most {PATTERN_CHARS_MAX}, and '*' for any characters"
        )
    return namespace


def check_namespace(namespace: str) -> str:
    """Returns the name, or raises InvalidArgument if no namespace can have it."""
    if "*" in check_pattern(namespace):
        raise InvalidArgument(f"{namespace!r} is a pattern: name one namespace")
    return namespace


def matches(pattern: str, namespace: str) -> bool:
    """Returns whether a grant on `pattern` is one on `namespace`."""
    if "*" not in pattern:
        return pattern == namespace
    return _compiled(pattern).match(namespace) is not None


@lru_cache(maxsize=GRANTS_MAX)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def namespace_of_ledger(custom: Mapping[str, bytes]) -> str | None:
    """Returns the namespace that a ledger's custom metadata names; None if it belongs to none. A
    tag that cannot be read is a namespace that no grant but `*` matches."""
    tag = custom.get(STREAM_TAG)
    if tag is None:
        return None
    return tag.partition(b"/")[0].decode("ascii", "replace") or _UNREADABLE


class Rights:
    """What one user may do by one table. Immutable."""

    __slots__ = ("_exact", "_of_cluster", "_patterns", "is_admin")

    def __init__(self, grants: Iterable[Grant]) -> None:
        exact: dict[str, int] = {}
        patterns: dict[str, int] = {}
        of_cluster: set[Role] = set()
        for one in grants:
            if one.role.is_of_namespace:
                ranks = patterns if one.is_pattern else exact
                ranks[one.namespace] = max(ranks.get(one.namespace, 0), _RANKS[one.role])
            else:
                of_cluster.add(one.role)
        self._exact = exact
        self._patterns = patterns
        self._of_cluster = frozenset(of_cluster)
        self.is_admin = Role.ADMIN in of_cluster

    def allows(self, role: Role, namespace: str | None = None) -> bool:
        """Returns whether the user may do what needs `role`. `namespace` is required for roles of
        namespaces, and ignored for others."""
        if self.is_admin:
            return True
        if not role.is_of_namespace:
            return role in self._of_cluster
        if namespace is None:
            return False
        rank = _RANKS[role]
        if self._exact.get(namespace, 0) >= rank:
            return True
        return any(
            has >= rank and matches(pattern, namespace) for pattern, has in self._patterns.items()
        )

    def allows_ledger(self, role: Role, namespace: str | None) -> bool:
        """Returns whether the user may do what needs `role` to a ledger of `namespace`; None: to
        one that belongs to none."""
        return self.allows(Role.LEDGER if namespace is None else role, namespace)

    def may_allow_ledger(self, role: Role) -> bool:
        """Returns whether there can be a ledger for which `allows_ledger` is true. If not, nobody
        needs to find out which namespace a ledger belongs to."""
        rank = _RANKS[role]
        ranks = (*self._exact.values(), *self._patterns.values())
        return self.is_admin or Role.LEDGER in self._of_cluster or any(one >= rank for one in ranks)


NO_RIGHTS: Final = Rights(())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a user has a role, and why. `by` are the grants that give it, `others` those of the
    user that do not."""

    role: Role
    is_allowed: bool
    by: tuple[Grant, ...]
    others: tuple[Grant, ...]

    @property
    def reason(self) -> str:
        """One sentence for people."""
        if self.by:
            return f"granted: {', '.join(map(str, self.by))}"
        if not self.others:
            return "the user has no grant at all"
        return f"no grant gives it; there are: {', '.join(map(str, self.others))}"


@dataclass(frozen=True, slots=True)
class PermissionTable:
    """All grants of a cluster. Immutable: a change returns another table."""

    grants: frozenset[Grant] = frozenset()
    _by_user: Mapping[str, Rights] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.grants) > GRANTS_MAX:
            raise InvalidArgument(
                f"{len(self.grants)} grants are more than the {GRANTS_MAX} that a cluster may have."
                " Cure: grant a role on a pattern of namespaces instead of each"
            )
        of_user: dict[str, list[Grant]] = {}
        for one in self.grants:
            of_user.setdefault(one.user, []).append(one)
        rights = {user: Rights(grants) for user, grants in of_user.items()}
        object.__setattr__(self, "_by_user", MappingProxyType(rights))

    def __iter__(self) -> Iterator[Grant]:
        """Yields the grants by user, namespace and role."""
        order = list(Role)
        return iter(
            sorted(self.grants, key=lambda one: (one.user, one.namespace, order.index(one.role)))
        )

    def rights_of(self, user: str) -> Rights:
        """Returns what a user may do; nothing if there is no grant to it."""
        return self._by_user.get(user, NO_RIGHTS)

    def granted(self, grants: Iterable[Grant]) -> PermissionTable:
        """Returns the table with further grants. Raises InvalidArgument for more than
        GRANTS_MAX."""
        return PermissionTable(self.grants.union(grants))

    def revoked(self, grants: Iterable[Grant]) -> PermissionTable:
        """Returns the table without these grants; others that include the same role stay."""
        return PermissionTable(self.grants.difference(grants))

    def of_user(self, user: str) -> list[Grant]:
        """Returns the grants of one user, sorted."""
        return [one for one in self if one.user == user]

    def explain(self, user: str, role: Role, namespace: str | None = None) -> Verdict:
        """Returns whether and why a user has a role: on a namespace, or on the cluster."""
        own = self.of_user(user)
        by = tuple(one for one in own if one.gives(role, namespace))
        return Verdict(role, bool(by), by, tuple(one for one in own if one not in by))
