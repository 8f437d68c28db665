"""The number of commits, which a driver knows without asking, or does not know at all."""

from __future__ import annotations

from .conftest import OpenSession


async def test_the_number_of_commits_changes_with_those_of_every_session(
    open_session: OpenSession,
) -> None:
    async with open_session() as one, open_session() as other:
        await one.create("/a", b"")
        seen = [one.commit_number()]
        if seen == [None]:  # a server would have to be asked
            return
        await other.put("/a", b"by the other")
        seen.append(one.commit_number())
        await one.put("/a", b"by itself")
        seen.append(one.commit_number())
        await other.delete("/a")
        seen.append(one.commit_number())
        assert all(number is not None for number in seen)
        assert len(set(seen)) == 4
