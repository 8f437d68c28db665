"""A start that cannot use its directories or its address names them, and the cure."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from bookie.config import BookieConfig
from bookie.startup.offline import BookieRuns
from bookie.startup.preflight import listen, lock_directories
from bookie.storage.disk.real_disk import RealDisk
from ledger.errors import InvalidArgument
from ledger.runtime.network import Listener, TcpNetwork


def _config(directory: str | Path, host: str = "127.0.0.1", port: int = 0) -> BookieConfig:
    return BookieConfig(
        metadata_uri="memory:",
        journal_directories=(f"{directory}/journal",),
        ledger_directories=(f"{directory}/ledgers",),
        host=host,
        port=port,
    )


@contextmanager
def _taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


async def test_directories_in_use_are_named(tmp_path: Path) -> None:
    running, second = RealDisk(), RealDisk()
    await lock_directories(_config(tmp_path), running)
    with pytest.raises(BookieRuns, match=f"{tmp_path}/journal is in use .*Cure: stop the bookie"):
        await lock_directories(_config(tmp_path), second)
    running.close()
    await lock_directories(_config(tmp_path), second)
    second.close()


@pytest.mark.parametrize("place", ["bookie", "bookie/journal"])
async def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path, place: str) -> None:
    file = trio.Path(tmp_path / place)
    await file.parent.mkdir(exist_ok=True)
    await file.write_bytes(b"")
    disk = RealDisk()
    with pytest.raises(InvalidArgument, match=rf"{file} is a file\. Cure: move the file"):
        await lock_directories(_config(tmp_path / "bookie"), disk)
    disk.close()


async def test_a_directory_without_write_permission_is_named(tmp_path: Path) -> None:
    class Forbidden(RealDisk):
        async def make_directory(self, path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    with pytest.raises(InvalidArgument, match=rf"{tmp_path}/journal.* denied.*Cure: create it"):
        await lock_directories(_config(tmp_path), Forbidden())


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with (
        _taken_port() as port,
        pytest.raises(
            InvalidArgument, match=rf"127\.0\.0\.1:{port}: Address already.*Cure: stop the program"
        ),
    ):
        await listen(_config(tmp_path, port=port), TcpNetwork())


async def test_a_host_that_is_not_this_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"listen on 192\.0\.2\.1:0: .*Cure: set host to an"):
        await listen(_config(tmp_path, "192.0.2.1"), TcpNetwork())


async def test_a_host_without_an_address_is_named(tmp_path: Path) -> None:
    class Nameless(TcpNetwork):
        async def listen(self, host: str, port: int) -> Listener:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(InvalidArgument, match=r"listen on nowhere:0: Name .*Cure: set host to an"):
        await listen(_config(tmp_path, "nowhere"), Nameless())


async def test_an_error_without_relation_to_the_address_is_raised_as_it_is(tmp_path: Path) -> None:
    class Exhausted(TcpNetwork):
        async def listen(self, host: str, port: int) -> Listener:
            raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        await listen(_config(tmp_path), Exhausted())


async def test_the_process_reports_it_in_one_line_and_fails(tmp_path: Path) -> None:
    with _taken_port() as port:
        file = tmp_path / "bookie.toml"
        file.write_text(
            f'metadata_uri = "memory:"\njournal_directories = ["{tmp_path}/j"]\n'
            f'ledger_directories = ["{tmp_path}/l"]\nport = {port}\nhost = "127.0.0.1"\n'
        )
        done = await trio.run_process(
            [sys.executable, "-m", "stream.cli", "bookie", "run", "--config", str(file)],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert b'bookie shuts down cause="cannot listen on 127.0.0.1:%d' % port in line
