"""The app of the retries measurement: a topic with two groups, one of which has scheduled all its events for a retry."""

from __future__ import annotations

from contest import told
from millstream import Millstream

NAMESPACE = "limits"
TOPIC, EASY, STUBBORN = "events", "easy", "stubborn"


async def easy(number: int) -> None:
    told.marks[number] += 1


async def stubborn(number: int) -> None:
    raise AssertionError(f"event {number} ran, but its retry is due in an hour")


def make_app(url: str) -> Millstream:
    app = Millstream(url, namespace=NAMESPACE)
    topic = app.topic(TOPIC, int)
    topic.subscribe(EASY)(easy)
    topic.subscribe(STUBBORN)(stubborn)
    return app


app = make_app(told.URL)
