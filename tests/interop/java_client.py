"""Apache's Java client under the control of a test: JSON lines to and from a driver.

`JavaVm` is the process, `JavaClient` one client in it; several clients with their own settings may
share a process, and a process may outlive a test. Requests run concurrently; appends to one handle
keep the order of the requests. java/README.md lists the operations.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.interop.build import build
from tests.interop.security import JAAS_OPTIONS
from tests.interop.timeouts import (
    CONNECT_TIMEOUT_S,
    PATIENCE_S,
    REQUEST_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
)

_DRIVER = "ledgerstream.interop.Driver"
_QUIT_TIMEOUT_S = 10.0

Answer = dict[str, Any]


class JavaError(Exception):
    """An operation failed in Java.

    `code` is that of a BKException (0 for other errors), `name` its class without BK and Exception
    ("LedgerFenced"), `achieved` the result of the completed steps of an operation with many.
    """

    def __init__(self, code: int, name: str, message: str, achieved: Answer | None = None) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.code = code
        self.name = name
        self.message = message
        self.achieved = achieved or {}


class JavaGone(Exception):
    """The process ended before it responded."""


def payload(seed: int, number: int, size: int) -> bytes:
    """Returns the bytes of entry `number`: SHA-256 of (seed, number) as big-endian int64, repeated.

    Payload.java computes the same, so that a million bytes need not be sent as JSON.
    """
    block = hashlib.sha256(struct.pack(">qq", seed, number)).digest()
    return (block * (size // len(block) + 1))[:size]


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    return base64.b64decode(text)


class JavaVm:
    """A driver process. Its stderr goes to `log`."""

    def __init__(self, version: str, log: Path, *, heap_mb: int = 192, level: str = "warn") -> None:
        self.version = version
        self.log = log
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._requests = 0
        self._ended = False
        command = build(version).command(_DRIVER, heap_mb=heap_mb)
        command[1:1] = [f"-Dlog.level={level}", *JAAS_OPTIONS]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._reader = threading.Thread(target=self._read, name="java answers", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, op: str, **arguments: Any) -> Future[Answer]:
        """Sends a request, with bytes as base64; the future may raise JavaError or JavaGone."""
        future: Future[Answer] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(self._gone())
                return future
            self._requests += 1
            number = self._requests
            self._waiting[number] = future
            line = json.dumps({"id": number, "op": op, **arguments}, default=_plain)
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # the reading thread notices the end and wakes all waiters
        return future

    def call_sync(self, op: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Answer:
        """Sends a request and returns its response, for fixtures outside of trio."""
        return self.request(op, **arguments).result(timeout_s)

    async def call(self, op: str, **arguments: Any) -> Answer:
        """Sends a request and returns its response. Raises JavaError, JavaGone.

        After a cancellation the response is ignored.
        """
        return await _answer_of(self.request(op, **arguments))

    def kill(self) -> None:
        """Kills the process with -9."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Ends the process, and waits for its end."""
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(_QUIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(answer["id"])
                if "ok" in answer:
                    future.set_result(answer["ok"])
                else:
                    future.set_exception(
                        JavaError(
                            answer["code"],
                            answer["error"],
                            answer["message"],
                            answer.get("achieved"),
                        )
                    )
        with self._lock:
            self._ended = True
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(self._gone())

    def _gone(self) -> JavaGone:
        return JavaGone(f"the Java process ended; it said:\n{self.log.read_text()[-2000:]}")


async def _answer_of(future: Future[Answer]) -> Answer:
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: Future[Answer]) -> None:
        try:
            token.run_sync_soon(done.set)
        except trio.RunFinishedError:
            pass  # the test has ended before

    future.add_done_callback(wake)
    await done.wait()
    return future.result()


def _plain(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return to_base64(bytes(value))
    raise TypeError(f"{value!r} is no argument for Java")


def java_uri(uri: str) -> str:
    """Returns `zk://h1:1,h2:1/ledgers` in Apache's form."""
    scheme, _, rest = uri.partition("://")
    hosts, slash, path = rest.partition("/")
    if scheme == "zk":
        scheme = "zk+null"
    return f"{scheme}://{hosts.replace(',', ';')}{slash}{path}"


TIMEOUTS: dict[str, object] = {
    "zkTimeout": SESSION_TIMEOUT_MS,
    "addEntryTimeoutSec": REQUEST_TIMEOUT_S,
    "readEntryTimeoutSec": REQUEST_TIMEOUT_S,
    "clientConnectTimeoutMillis": 1000 * CONNECT_TIMEOUT_S,
}
"""Settings for all of Apache's clients, including those in its servers and its shell."""

CLIENT_SETTINGS: dict[str, object] = {
    "throttle": 0,  # requests a second, by ledger
    "numIOThreads": 1,
    "numWorkerThreads": 2,
    **TIMEOUTS,
    "enforceMinNumRacksPerWriteQuorum": False,
}
"""Small and patient."""


class JavaClient:
    """One client, with its own connections and settings, in a process."""

    def __init__(self, vm: JavaVm, number: int, *, v2: bool) -> None:
        self.vm = vm
        self.v2 = v2
        self._number = number

    @property
    def version(self) -> str:
        return self.vm.version

    @classmethod
    @asynccontextmanager
    async def start(
        cls, version: str, zookeeper_uri: str, log: Path, v2: bool = False, **client_settings: Any
    ) -> AsyncIterator[JavaClient]:
        """Opens a client in a process of its own, which a test may kill: `java.vm.kill()`."""
        vm = await trio.to_thread.run_sync(JavaVm, version, log)
        try:
            async with cls.open(vm, zookeeper_uri, v2=v2, **client_settings) as client:
                yield client
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(vm.stop)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        vm: JavaVm,
        zookeeper_uri: str,
        *,
        v2: bool = False,
        waits_closed: bool = True,
        **client_settings: Any,
    ) -> AsyncIterator[JavaClient]:
        """Opens a client in a running process, with settings of Apache's ClientConfiguration.

        Apache's client takes two seconds to close; `waits_closed` false does not wait for this.
        """
        settings = client_settings_of(zookeeper_uri, v2=v2, **client_settings)
        number = (await vm.call("client", settings=settings))["client"]
        client = cls(vm, number, v2=v2)
        try:
            yield client
        finally:
            closed = client.forget()
            if waits_closed:
                with trio.move_on_after(PATIENCE_S, shield=True):
                    try:
                        await _answer_of(closed)
                    except JavaGone:
                        pass

    @classmethod
    def open_sync(
        cls, vm: JavaVm, zookeeper_uri: str, *, v2: bool = False, **client_settings: Any
    ) -> JavaClient:
        """Opens a client, for fixtures outside of trio; `forget` must be called at the end."""
        settings = client_settings_of(zookeeper_uri, v2=v2, **client_settings)
        return cls(vm, vm.call_sync("client", settings=settings)["client"], v2=v2)

    def forget(self) -> Future[Answer]:
        """Closes the client in the background."""
        return self.vm.request("close_client", client=self._number)

    async def call(self, op: str, **arguments: Any) -> Answer:
        """Returns the response; raises JavaError, or JavaGone if the process has died."""
        return await self.vm.call(op, client=self._number, **arguments)

    async def read(self, handle: int, first: int, last: int, op: str = "read") -> list[bytes]:
        """Returns the payloads of a range, after checking the entry ids."""
        answer = await self.call(op, handle=handle, first=first, last=last)
        assert [entry["entry"] for entry in answer["entries"]] == list(range(first, last + 1))
        return [from_base64(entry["data"]) for entry in answer["entries"]]


def client_settings_of(zookeeper_uri: str, *, v2: bool, **more: Any) -> dict[str, str]:
    """Returns a ClientConfiguration as Java reads it from a file."""
    settings = {
        "metadataServiceUri": java_uri(zookeeper_uri),
        "useV2WireProtocol": v2,
        **CLIENT_SETTINGS,
        **more,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
