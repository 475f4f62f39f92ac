"""An app that configures logging itself."""

from __future__ import annotations

import logging

from millstream import Millstream
from millstream.logging import JobFilter

log = logging.getLogger("logged")
handler = logging.StreamHandler()
handler.addFilter(JobFilter())
handler.setFormatter(logging.Formatter("%(levelname)s|%(task)s|%(job_id)s|%(attempt)d|%(message)s"))
logging.basicConfig(level=logging.INFO, handlers=[handler])

app = Millstream()


@app.task
async def greet(name: str) -> None:
    log.info("hello %s", name)
