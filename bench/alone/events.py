"""The app of the measurement of retries: a topic with two groups, of which one has put off what it was given."""

from __future__ import annotations

from contest import told
from millstream import Millstream

NAMESPACE = "limits"
TOPIC, EASY, STUBBORN = "events", "easy", "stubborn"


async def easy(number: int) -> None:
    told.marks[number] += 1


async def stubborn(number: int) -> None:
    raise AssertionError(f"event {number} was put off, and is due in an hour")


def make_app(url: str) -> Millstream:
    app = Millstream(url, namespace=NAMESPACE)
    topic = app.topic(TOPIC, int)
    topic.subscribe(EASY)(easy)
    topic.subscribe(STUBBORN)(stubborn)
    return app


app = make_app(told.URL)
