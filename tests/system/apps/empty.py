"""An app without tasks."""

from __future__ import annotations

from millstream import Millstream

app = Millstream()
