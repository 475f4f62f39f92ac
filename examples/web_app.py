"""A worker inside a web application: it starts and stops with the application, in the same event loop.

``web`` is a plain ASGI application, so any ASGI server can run it: ``uvicorn web_app:web``. With FastAPI or Starlette, put
``async with app.worker(): yield`` into the application's lifespan. To move the tasks to separate processes later, remove the
worker here and start ``millstream worker web_app:app``.

    python examples/web_app.py

acts as the ASGI server for two requests and prints

    202 accepted
    welcome mail to ada
    200 {"status": "done"}
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from millstream import Millstream, current_job

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@asynccontextmanager
async def resources(app: Millstream) -> AsyncIterator[dict[str, str]]:
    """Resources that handlers share: opened when a worker starts, closed when it stops."""
    yield {"sender": "welcome mail"}


app = Millstream(namespace="web-app", lifespan=resources)


@app.task(queue="mail")
async def welcome(name: str) -> None:
    print(f"{current_job().state['sender']} to {name}")


async def web(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["path"].startswith("/signup/"):
        job = await welcome.enqueue(scope["path"].removeprefix("/signup/"))
        await respond(send, 202, {"job": job.id})
    else:
        job_id = scope["path"].removeprefix("/jobs/")
        await respond(send, 200, {"status": await welcome.job(job_id).status()})


async def lifespan(receive: Receive, send: Send) -> None:
    """Run the worker from startup to shutdown."""
    await receive()
    async with app, app.worker():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def respond(send: Send, status: int, body: Message) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


# --- a minimal ASGI server for this example ---


async def main() -> None:
    to_web: asyncio.Queue[Message] = asyncio.Queue()
    from_web: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.create_task(web({"type": "lifespan"}, to_web.get, from_web.put))
    await to_web.put({"type": "lifespan.startup"})
    assert (await from_web.get())["type"] == "lifespan.startup.complete"
    status, body = await request("/signup/ada")
    print(status, "accepted")
    job_id = json.loads(body)["job"]
    await welcome.job(job_id).result(timeout=10)
    print(*await request(f"/jobs/{job_id}"))
    await to_web.put({"type": "lifespan.shutdown"})
    await running


async def request(path: str) -> tuple[int, str]:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    await web({"type": "http", "method": "GET", "path": path}, sent.get, sent.put)
    start, body = sent.get_nowait(), sent.get_nowait()
    return start["status"], body["body"].decode()


if __name__ == "__main__":
    asyncio.run(main())
