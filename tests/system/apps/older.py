"""An older release of ``jobs``: fewer tasks, other signatures, a smaller size limit."""

from __future__ import annotations

import json
import os

from millstream import Millstream

try:
    from ledger import entry
except ImportError:
    from tests.system.apps.ledger import entry

app = Millstream(max_payload_bytes=1000, **json.loads(os.environ.get("JOBS_SETTINGS", "{}")))


@app.task
async def note(key: int) -> int:
    """``key`` is a string in ``jobs``."""
    with entry(str(key)):
        return key


@app.task
async def measure(key: str, text: str) -> int:
    with entry(key):
        return len(text)
