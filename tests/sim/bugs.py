"""Bugs to plant, so that the simulator itself is tested: each must be found within 200 seeds.

They are put in by patching product classes; the product knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

Plant = Callable[[ExitStack], None]
BUGS: dict[str, Plant] = {}


@contextmanager
def bug_planted(name: str | None) -> Iterator[None]:
    """The product with the bug `name`, or as it is."""
    with ExitStack() as stack:
        if name is not None:
            BUGS[name](stack)
        yield


def _replace(stack: ExitStack, owner: object, attribute: str, new: object) -> None:
    stack.enter_context(mock.patch.object(owner, attribute, new))
