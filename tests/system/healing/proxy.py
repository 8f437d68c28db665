"""A proxy in front of one bookie, whose link can be cut or stalled."""

from __future__ import annotations

import trio

_CHUNK_BYTES = 256 * 1024


class LinkProxy:
    """Listens at `address` and passes everything on to `target`, while the link works."""

    def __init__(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        self._address = address
        self._target = target
        self._connections: dict[int, trio.CancelScope] = {}
        self._numbers = 0
        self._is_cut = False
        self._flows = trio.Event()
        self._flows.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        host, port = self._address
        await trio.serve_tcp(self._serve, port, host=host, task_status=task_status)  # type: ignore[arg-type]

    async def cut(self, seconds: float) -> None:
        """Ends all connections, and accepts none for a while."""
        self._is_cut = True
        for scope in list(self._connections.values()):
            scope.cancel()
        await trio.sleep(seconds)
        self._is_cut = False

    async def stall(self, seconds: float) -> None:
        """Passes nothing on for a while; connections stay. One that two stalls meet at once stays
        silent permanently, as behind a firewall that forgot it: its ends have to find out."""
        self._flows = trio.Event()
        await trio.sleep(seconds)
        self._flows.set()

    async def _serve(self, near: trio.SocketStream) -> None:
        if self._is_cut:
            return
        self._numbers += 1
        number = self._numbers
        try:
            far = await trio.open_tcp_stream(*self._target)
        except OSError:
            return
        async with far, trio.open_nursery() as nursery:
            self._connections[number] = nursery.cancel_scope
            try:
                nursery.start_soon(self._pump, near, far, nursery.cancel_scope)
                await self._pump(far, near, nursery.cancel_scope)
            finally:
                del self._connections[number]

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(_CHUNK_BYTES):
                await self._flows.wait()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()
