"""The loggers of Millstream. What they log is escaped: error texts, ids and keys come from anywhere."""

from __future__ import annotations

import logging
import textwrap

from millstream.reporting.printable import block, line

TRACEBACK_HEAD, TRACEBACK_TAIL = 8_192, 24_576
"""Characters of a longer traceback that are logged: its beginning and its end."""

_formatter = logging.Formatter()


class Escaping(logging.Filter):
    """Makes each record harmless: control characters are escaped, and no value begins a new line.

    Tracebacks keep their lines, indented, so that none of them looks like a line of the log. Handlers that read ``exc_info``
    themselves still find the exception there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        if record.exc_info and not record.exc_text:
            record.exc_text = textwrap.indent(block(_bounded(_formatter.formatException(record.exc_info))), "  ")
        text = record.getMessage()
        harmless = block(text) if "\n" in str(record.msg) else line(text)
        if harmless != text:
            record.msg, record.args = harmless, ()
        return True


def logger(name: str) -> logging.Logger:
    """The logger of that name, escaping."""
    log = logging.getLogger(name)
    if not any(isinstance(each, Escaping) for each in log.filters):
        log.addFilter(Escaping())
    return log


def _bounded(text: str) -> str:
    if len(text) <= TRACEBACK_HEAD + TRACEBACK_TAIL:
        return text
    left_out = len(text) - TRACEBACK_HEAD - TRACEBACK_TAIL
    return f"{text[:TRACEBACK_HEAD]}\n… ({left_out:,} characters are left out)\n{text[-TRACEBACK_TAIL:]}"
