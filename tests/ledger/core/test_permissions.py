"""Permissions compared with a naive twin, their explanations, and what cannot be granted."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.permissions import (
    CLUSTER_ROLES,
    GRANTS_MAX,
    NAMESPACE_ROLES,
    NO_RIGHTS,
    Grant,
    PermissionTable,
    Role,
    namespace_of_ledger,
)
from ledger.errors import InvalidArgument

USERS = ("alice", "bob", "anonymous")
NAMESPACES = ("a", "team-a", "team-b", "other", "teamx")
PATTERNS = ("a", "team-a", "team-*", "*", "*-a", "t*m-*", "*x")

grants = st.one_of(
    st.builds(
        Grant, st.sampled_from(USERS), st.sampled_from(NAMESPACE_ROLES), st.sampled_from(PATTERNS)
    ),
    st.builds(Grant, st.sampled_from(USERS), st.sampled_from(CLUSTER_ROLES)),
)
roles = st.sampled_from(list(Role))


def naive(table: frozenset[Grant], user: str, role: Role, namespace: str | None) -> bool:
    """The rules, written out without ranks and without compiled patterns."""
    includes = {
        Role.READ: {Role.READ, Role.WRITE, Role.MANAGE},
        Role.WRITE: {Role.WRITE, Role.MANAGE},
        Role.MANAGE: {Role.MANAGE},
    }
    for one in table:
        if one.user != user:
            continue
        if one.role is Role.ADMIN:
            return True
        if role in includes:
            is_large_enough = namespace is not None and one.role in includes[role]
            if is_large_enough and fnmatchcase(namespace or "", one.namespace):
                return True
        elif one.role is role:
            return True
    return False


@given(
    st.frozensets(grants, max_size=12),
    st.sampled_from(USERS),
    roles,
    st.sampled_from([None, *NAMESPACES]),
)
def test_decisions_and_explanations_agree_with_the_naive_rules(
    granted: frozenset[Grant], user: str, role: Role, namespace: str | None
) -> None:
    table = PermissionTable(granted)
    rights = table.rights_of(user)
    wanted = naive(granted, user, role, namespace)
    assert rights.allows(role, namespace) is wanted
    verdict = table.explain(user, role, namespace)
    assert verdict.is_allowed is wanted
    assert {*verdict.by, *verdict.others} == set(table.of_user(user))
    assert verdict.reason


@given(st.frozensets(grants, max_size=12), st.sampled_from(USERS))
def test_rights_to_ledgers_are_those_of_their_namespace_or_the_role_ledger(
    granted: frozenset[Grant], user: str
) -> None:
    rights = PermissionTable(granted).rights_of(user)
    for role in (Role.READ, Role.WRITE):
        without = naive(granted, user, Role.LEDGER, None)
        assert rights.allows_ledger(role, None) is without
        allowed = [rights.allows_ledger(role, one) for one in NAMESPACES]
        assert allowed == [naive(granted, user, role, one) for one in NAMESPACES]
        if any(allowed) or without:
            assert rights.may_allow_ledger(role)


@given(st.frozensets(grants, max_size=12), st.frozensets(grants, max_size=3))
def test_a_revoked_grant_never_allows_more(
    granted: frozenset[Grant], revoked: frozenset[Grant]
) -> None:
    table = PermissionTable(granted)
    less, more = table.revoked(revoked), table.granted(revoked)
    for user in USERS:
        for role in Role:
            for namespace in (None, *NAMESPACES):
                has = table.rights_of(user).allows(role, namespace)
                assert has or not less.rights_of(user).allows(role, namespace)
                assert not has or more.rights_of(user).allows(role, namespace)
    assert less.granted(granted) == table


def test_nothing_is_allowed_without_a_grant() -> None:
    table = PermissionTable()
    for role in Role:
        assert not table.rights_of("alice").allows(role, "demo")
    assert table.rights_of("anonymous") is NO_RIGHTS
    assert not any(NO_RIGHTS.may_allow_ledger(role) for role in (Role.READ, Role.WRITE))
    assert table.explain("alice", Role.READ, "demo").reason == "the user has no grant at all"


def test_an_explanation_names_the_grants_that_decide() -> None:
    table = PermissionTable().granted(
        [Grant("alice", Role.READ, "team-*"), Grant("alice", Role.WRITE, "team-a")]
    )
    assert table.explain("alice", Role.READ, "team-a").reason == (
        "granted: read on team-*, write on team-a"
    )
    assert table.explain("alice", Role.WRITE, "team-b").reason == (
        "no grant gives it; there are: read on team-*, write on team-a"
    )
    assert table.explain("alice", Role.OPERATE).reason.startswith("no grant gives it")


@pytest.mark.parametrize(
    ("user", "role", "namespace", "said"),
    [
        ("", Role.READ, "demo", "1 to 128 characters"),
        ("a" * 129, Role.READ, "demo", "this one 129"),
        (" alice", Role.READ, "demo", "no space at its ends"),
        ("al\nice", Role.READ, "demo", "printable"),
        ("al\u202eice", Role.READ, "demo", "printable"),
        ("alice", Role.READ, "", "name one, or a pattern like"),
        ("alice", Role.READ, "a/b", "use letters, digits"),
        ("alice", Role.READ, "team-?", "use letters, digits"),
        ("alice", Role.READ, "[a-z]", "use letters, digits"),
        ("alice", Role.READ, "n" * 201, "at most 200"),
        ("alice", Role.ADMIN, "demo", "on the whole cluster, not on a namespace"),
        ("alice", Role.LEDGER, "*", "on the whole cluster, not on a namespace"),
    ],
)
def test_what_cannot_be_granted_is_refused(
    user: str, role: Role, namespace: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Grant(user, role, namespace)


def test_the_number_of_grants_is_limited() -> None:
    full = [Grant(f"user{number}", Role.ADMIN) for number in range(GRANTS_MAX)]
    table = PermissionTable().granted(full)
    with pytest.raises(InvalidArgument, match="10001 grants are more"):
        table.granted([Grant("one more", Role.ADMIN)])


def test_many_stars_are_matched_in_time() -> None:
    pattern = "*a" * 100
    table = PermissionTable().granted([Grant("alice", Role.READ, pattern)])
    assert not table.rights_of("alice").allows(Role.READ, "a" * 99 + "b" * 100)
    assert table.rights_of("alice").allows(Role.READ, "a" * 150)


@pytest.mark.parametrize(
    ("custom", "namespace"),
    [
        ({}, None),
        ({"application": b"pulsar"}, None),
        ({"ledgerstream.stream": b"team-a/clicks"}, "team-a"),
        ({"ledgerstream.stream": b"team-a/clicks#2"}, "team-a"),
        ({"ledgerstream.stream": b""}, "\ufffd"),
        ({"ledgerstream.stream": b"/clicks"}, "\ufffd"),
        ({"ledgerstream.stream": b"\xff/clicks"}, "\ufffd"),
    ],
)
def test_a_ledger_carries_its_namespace(custom: dict[str, bytes], namespace: str | None) -> None:
    assert namespace_of_ledger(custom) == namespace


def test_an_unreadable_tag_is_no_namespace_that_can_be_granted() -> None:
    namespace = namespace_of_ledger({"ledgerstream.stream": b"\xff/clicks"})
    assert namespace is not None
    with pytest.raises(InvalidArgument):
        Grant("alice", Role.READ, namespace)
