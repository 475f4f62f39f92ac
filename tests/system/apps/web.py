"""A plain WSGI site for ``gunicorn --preload``. It enqueues while it is imported, then from every process that serves it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from jobs import note

parent = os.getpid()
at_import = note.enqueue_sync("import").id


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    key = environ["PATH_INFO"].strip("/")
    job = note.enqueue_sync(key)
    answer = {"pid": os.getpid(), "parent": parent, "id": job.id, "at_import": at_import, "result": job.result_sync(timeout=30)}
    body = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
