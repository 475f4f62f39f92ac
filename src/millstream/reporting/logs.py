"""The loggers of Millstream. They escape what they log, because error texts, ids and keys are untrusted."""

from __future__ import annotations

import logging
import textwrap

from millstream.reporting.printable import block, line

TRACEBACK_HEAD, TRACEBACK_TAIL = 8_192, 24_576
"""Number of characters logged from the beginning and from the end of a longer traceback."""

_formatter = logging.Formatter()


class Escaping(logging.Filter):
    """Escapes control characters in each record, so that no value can start a new line.

    Tracebacks keep their lines but are indented, so that none looks like a log line of its own. ``exc_info`` is unchanged, for
    handlers that read it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the record. Always returns True."""
        if record.exc_info and not record.exc_text:
            record.exc_text = textwrap.indent(block(_bounded(_formatter.formatException(record.exc_info))), "  ")
        text = record.getMessage()
        harmless = block(text) if "\n" in str(record.msg) else line(text)
        if harmless != text:
            record.msg, record.args = harmless, ()
        return True


def logger(name: str) -> logging.Logger:
    """Return the logger with this name, with escaping."""
    log = logging.getLogger(name)
    if not any(isinstance(each, Escaping) for each in log.filters):
        log.addFilter(Escaping())
    return log


def _bounded(text: str) -> str:
    if len(text) <= TRACEBACK_HEAD + TRACEBACK_TAIL:
        return text
    left_out = len(text) - TRACEBACK_HEAD - TRACEBACK_TAIL
    return f"{text[:TRACEBACK_HEAD]}\n… ({left_out:,} characters omitted)\n{text[-TRACEBACK_TAIL:]}"
