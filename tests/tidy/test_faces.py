"""The faces for asyncio and threads say what the trio classes say."""

from __future__ import annotations

from tests.tidy.checkout import name_of
from tools.faces.generate import all_files, without_async


def test_generated_faces_are_up_to_date() -> None:
    stale = [
        name_of(path)
        for path, text in all_files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make faces`"


def test_a_program_loses_its_awaits() -> None:
    program = (
        "async with namespace.writer('s') as writer:\n"
        "    await writer.append(b'x')\n"
        "async for record in reader:\n"
        "    await f(await g())\n"
    )
    assert without_async(program) == (
        "with namespace.writer('s') as writer:\n"
        "    writer.append(b'x')\n"
        "for record in reader:\n"
        "    f(g())\n"
    )
