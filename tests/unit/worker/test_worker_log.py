"""What a worker logs about failed jobs."""

from __future__ import annotations

import logging

import pytest

from millstream import RetryPolicy, current_job
from millstream.errors import JobFailed, Retry
from millstream.reporting.logs import Escaping
from tests.stage import PATIENCE, looped, new_app


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    formatter = logging.Formatter("%(levelname)s %(message)s")
    return [formatter.format(record) for record in caplog.records if record.levelno >= logging.WARNING]


@looped
async def test_the_first_failure_is_logged_with_its_traceback_and_later_ones_name_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = new_app(retry=RetryPolicy(2, delay=0.0))

    @app.task
    async def fail() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(PATIENCE)
    first, second, dead = lines(caplog)
    assert "runs again" in first and "Traceback" in first and "in fail" in first
    assert "runs again" in second and "Traceback" not in second
    assert second.endswith(f"ValueError: attempt 2 (details: millstream jobs show {job.id})")
    assert "is dead, exhausted" in dead and "Traceback" in dead


@looped
async def test_a_retry_requested_by_a_handler_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app(retry=RetryPolicy(1, delay=0.0))

    @app.task
    async def ask() -> None:
        if current_job().attempt == 1:
            raise Retry("not ready")

    async with app, app.worker():
        await (await ask.enqueue()).result(PATIENCE)
    (said,) = lines(caplog)
    assert said.endswith("Retry: not ready")


@looped
async def test_an_exception_text_can_neither_forge_a_log_line_nor_control_a_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = new_app(retry=RetryPolicy(1, delay=0.0))

    @app.task
    async def fail() -> None:
        raise ValueError("\x1b[2Jgone\r\n2026-01-01 ERROR forged\u202e\x9b1m")

    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(PATIENCE)
    for said in lines(caplog):
        message, *traceback = said.split("\n")
        assert "\\x1b[2Jgone\\x0d\\n2026-01-01 ERROR forged\\u202e\\x9b1m" in message
        assert all(each.startswith("  ") for each in traceback)
        assert not set(said) & {"\x1b", "\r", "\x9b", "\u202e"}


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("millstream", logging.INFO, __file__, 1, message, args, None)


def test_a_record_without_control_characters_keeps_its_message_and_arguments_separate() -> None:
    plain = record("job %s has a key %r", "a", "b\n")
    assert Escaping().filter(plain)
    assert (plain.msg, plain.args) == ("job %s has a key %r", ("a", "b\n"))


def test_a_log_message_of_several_lines_keeps_its_lines() -> None:
    stacks = record("stacks:\n%s", "one\ntwo\x1b")
    assert Escaping().filter(stacks)
    assert stacks.getMessage() == "stacks:\none\ntwo\\x1b"


def test_a_log_handler_can_still_read_the_exception() -> None:
    error = ValueError("no")
    logged = logging.LogRecord("millstream", logging.INFO, __file__, 1, "it", (), (ValueError, error, None))
    assert Escaping().filter(logged)
    assert logged.exc_info is not None and logged.exc_info[1] is error
