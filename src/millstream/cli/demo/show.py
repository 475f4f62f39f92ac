"""The output of the demo: events as they happen, live progress on a terminal, and the account at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millstream import DeadJob, __version__
from millstream.cli.demo.account import Account, Row
from millstream.cli.demo.progress import Progress

WIDTH = 96
"""Maximum number of terminal columns used."""
BAR_LEAST = 8
"""Minimum width of a progress bar."""

PLAIN_SECONDS = 2.0
"""Interval between progress lines if the output is not a terminal."""

FIRST_APP = """\
from millstream import Millstream

app = Millstream()

@app.task
async def hello(name: str) -> str:
    return f"Hello, {name}!"
"""


class Show:
    """Prints to one console. As a context manager it shows the live view, which disappears on exit."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._said = self._began
        # The live view needs a terminal that can move its cursor. Other outputs get lines.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_interactive else None

    def __enter__(self) -> Show:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(Text())
            self._live.stop()

    def headline(self) -> None:
        """Print what the demo will show."""
        self._console.print()
        self._console.print(
            Text.assemble(("Millstream", "bold"), f" {__version__}  a small shop, two worker processes, one kill -9")
        )
        self._console.print()

    def event(self, *parts: str | tuple[str, str]) -> None:
        """Print an event with the seconds since the start."""
        moment = f"{self._clock() - self._began:6.1f} s  "
        self._console.print(_hanging(Text(moment, "dim"), Text.assemble(*parts)))

    def progress(self, now: Progress) -> None:
        """Show the progress: immediately on a terminal, as a line every PLAIN_SECONDS elsewhere."""
        if self._live is not None:
            self._live.update(_moving(now, self._console.width), refresh=True)
        elif self._clock() - self._said >= PLAIN_SECONDS:
            self._said = self._clock()
            self.event(f"{now.ended:,} of {now.accepted:,} jobs ended, {now.running} running")

    def account(self, account: Account) -> None:
        """Print how every job ended."""
        self._console.print()
        self._console.print(_table(account))
        total = account.total()
        parts = " + ".join(f"{count:,} {status}" for status, count in total.ended.items() if count)
        lost = ("nothing lost", "bold green") if total.lost == 0 else (f"{total.lost:,} lost", "bold red")
        self._line("account", Text.assemble(f"{total.accepted:,} accepted = {parts}, ", lost))
        if account.kill is not None:
            self._line("kill -9", Text(_recovery(account)))
        for letter in account.letters:
            self._letter(letter)

    def closing(self, seconds: float) -> None:
        """Print that every job is accounted for, and the next steps for the user."""
        python, millstream = commands()
        ask = """-c "from tasks import hello; print(hello.enqueue_sync('you').result_sync(timeout=10))\""""
        self._console.print()
        self._print(
            Text.assemble(
                ("✔ ", "bold green"), f"Every job is accounted for, after {seconds:.1f} s. The demo left nothing behind."
            )
        )
        self._console.print()
        self._print(Text("Now write your own app. Save this as tasks.py:", "bold"))
        self._console.print()
        self._print(Text(FIRST_APP, "cyan"), indent=5)
        self._print(Text("Start a worker. Then enqueue a job from another terminal:", "bold"))
        self._console.print()
        self._print(Text(f"{millstream} worker tasks:app\n{python} {ask}", "cyan"), indent=5)
        self._console.print()

    def failure(self, complaints: Sequence[str], log: Path) -> None:
        """Print the inconsistencies, and where the worker's log is."""
        self._console.print()
        for complaint in complaints:
            self._console.print(_hanging(Text(" ✘ ", "bold red"), Text(complaint, "bold red")))
        self._console.print()
        self._print(Text(f"The demo failed. The worker's log: {log}"))

    def interrupted(self) -> None:
        """Print that the demo was interrupted."""
        self._print(Text("Stopped. The demo left nothing behind."))

    def _letter(self, letter: DeadJob) -> None:
        many = f"{letter.attempts} attempts" if letter.attempts != 1 else "1 attempt"
        said = Text.assemble(f"{letter.task}, job {letter.id}: ", (letter.reason, "bold red"), f" after {many}")
        self._console.print()
        self._line("dead letter", said)
        self._print(Text(letter.traceback.rstrip(), "dim"), indent=5)

    def _print(self, text: Text, indent: int = 1) -> None:
        """Print text without wrapping its lines, so that it can be copied."""
        for line in text.split(allow_blank=True):
            self._console.print(Text(" " * indent) + line if line.plain else line, soft_wrap=True)

    def _line(self, name: str, said: Text) -> None:
        self._console.print(_hanging(Text(f" {name:<13}", "bold"), said))


def make_console() -> Console:
    """Return a console on stdout. Characters that stdout cannot encode become question marks."""
    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if console.width > WIDTH or not console.is_terminal:
        console.width = WIDTH
    return console


def commands() -> tuple[str, str]:
    """Return the commands that start this Python and this ``millstream`` from the current folder."""
    here = Path.cwd()
    python = Path(sys.executable)
    beside = python.with_name("millstream")
    if not python.is_relative_to(here) or not beside.exists():
        return "python", "millstream"
    return str(python.relative_to(here)), str(beside.relative_to(here))


def _hanging(head: Text, body: Text) -> Table:
    """Return a grid of a head and a body that wraps in its own column."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head, body)
    return grid


def _moving(now: Progress, width: int) -> RenderableType:
    bar_width = min(30, width - 79)  # 79 columns are for text; a narrow terminal shows no bars
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column("task")
    if bar_width >= BAR_LEAST:
        table.add_column("", width=bar_width)
    for column in ("done", "dead", "cancelled", "running", "waiting", "retried"):
        table.add_column(column, justify="right", min_width=min(7, len(column)))
    for task in now.tasks:
        bar = ProgressBar(total=max(task.accepted, 1), completed=task.ended, complete_style="cyan", finished_style="green")
        numbers = (task.dead, task.cancelled, task.running, task.waiting, task.retried)
        done = f"{task.done:,}/{task.accepted:,}"
        table.add_row(task.task, *([bar] if bar_width >= BAR_LEAST else []), done, *(_count(number) for number in numbers))
    processes = [f"process {pid} runs {running}" for pid, running in sorted(now.processes.items())]
    line = Text("   ".join(processes), "dim")
    if now.killed is not None:
        line.append(f"   process {now.killed} killed", "red")
    return Padding(Group(table, line), (1, 0, 0, 1), expand=False)


def _table(account: Account) -> RenderableType:
    rows, total = account.rows(), account.total()
    ways = [way for way in total.ended if total.ended[way] or way in ("done", "dead")]
    table = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True, show_footer=True, footer_style="bold"
    )
    table.add_column("task", "total")
    for column, footer in zip(("accepted", *ways, "lost", "retried", "run again"), _numbers(total, ways), strict=True):
        table.add_column(column, footer, justify="right", min_width=5)
    for row in rows:
        table.add_row(row.task, *_numbers(row, ways))
    return Padding(table, (0, 0, 0, 1), expand=False)


def _numbers(row: Row, ways: Sequence[str]) -> list[Text]:
    styles = {"dead": "red", "done": "green"}
    return [
        _count(row.accepted),
        *(_count(row.ended[way], styles.get(way, "")) for way in ways),
        Text("0", "green") if row.lost == 0 else Text(f"{row.lost:,}", "bold red"),
        _count(row.retried, "yellow"),
        _count(row.again, "yellow"),
    ]


def _count(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style) if number else Text("·", "dim")


def _recovery(account: Account) -> str:
    assert account.kill is not None
    seconds = account.recoveries()
    if not seconds:
        return f"process {account.kill.pid} was killed, and no job had to run again"
    jobs = "1 job" if len(seconds) == 1 else f"{len(seconds)} jobs"
    return (
        f"process {account.kill.pid} was killed while it was running {jobs}. They restarted in other processes: "
        f"the first {seconds[0]:.2f} s after the kill, the last {seconds[-1]:.2f} s. No other job ran twice"
    )
