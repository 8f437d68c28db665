"""A web page that shows the records of a stream as they are appended, with asyncio.

    python -m examples.web_tail CLUSTER [PORT]

Then open http://127.0.0.1:8000/ and `curl -d news http://127.0.0.1:8000/append`. The page gets
server-sent events. A browser that reconnects sends the id of its last event, and continues there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from ledgerstream.aio import FromEnd, FromSequence, Namespace

PAGE = """<pre id=log></pre><script>new EventSource("/tail").onmessage =
e => { document.getElementById("log").textContent += e.data + "\\n" }</script>"""


def app(cluster: str) -> Starlette:
    @asynccontextmanager
    async def lifespan(web: Starlette) -> AsyncIterator[None]:
        async with (
            Namespace.connect(cluster, "examples", create=True) as web.state.namespace,
            web.state.namespace.writer("news", create=True) as web.state.writer,
        ):
            yield

    async def append(request: Request) -> PlainTextResponse:
        position = await request.app.state.writer.append(await request.body())
        return PlainTextResponse(f"durable at {position}\n")

    async def tail(request: Request) -> StreamingResponse:
        seen = request.headers.get("last-event-id")
        start = FromSequence(int(seen) + 1) if seen else FromEnd(10)

        async def events() -> AsyncIterator[str]:
            async with request.app.state.namespace.reader("news", start=start) as reader:
                async for record in reader:
                    yield f"id: {record.sequence}\ndata: {record.value.decode()}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    page = Route("/", lambda _: HTMLResponse(PAGE))
    routes = [page, Route("/tail", tail), Route("/append", append, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    config = Config.from_mapping(bind=f"127.0.0.1:{(*sys.argv, 8000)[2]}")
    asyncio.run(serve(app(sys.argv[1]), config))  # type: ignore[arg-type]
