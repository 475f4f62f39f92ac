"""Puts the commands together, each of which has its file, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from millstream._version import __version__
from millstream.cli.bench import bench
from millstream.cli.dead import dead
from millstream.cli.doctor import doctor
from millstream.cli.enqueue import enqueue
from millstream.cli.groups import groups
from millstream.cli.jobs import jobs
from millstream.cli.options import Factory
from millstream.cli.publish import publish
from millstream.cli.queues import queues
from millstream.cli.tasks import list_tasks
from millstream.cli.topics import topics
from millstream.cli.workers import workers
from millstream.errors import BrokerError, MillstreamError, ShardsChanged, ShardsInUse, UsageError
from millstream.reporting.printable import line
from millstream.worker import codes

INTERRUPTED = 130
"""As a shell says of what Ctrl-C ended."""

ORDER = ("worker", "enqueue", "publish", "queues", "jobs", "dead", "topics", "groups", "workers", "tasks", "doctor", "bench")
"""Of the commands in the help; others follow."""


LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class Commands(TyperGroup):
    """All commands, the most used first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


cli = typer.Typer(
    cls=Commands,
    name="millstream",
    help="Background jobs and durable events for Python on Redis Streams.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # drawn by rich, help took twice as long
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point: one-line errors, exit codes scripts can rely on."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """One command; its exit code."""
    try:
        code = cli(args or ["--help"], prog_name="millstream", standalone_mode=False)
        sys.stdout.flush()
        return codes.USAGE if not args else code if isinstance(code, int) else codes.OK
    except UsageError as error:
        return _fail(error, codes.USAGE)
    except (ShardsChanged, ShardsInUse) as error:
        return _fail(error, codes.FAILED)  # the server is well
    except BrokerError as error:
        return _fail(error, codes.SERVER)
    except MillstreamError as error:
        return _fail(error, codes.FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read us has read enough; what is left must not be written when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return codes.FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _fail_usage(error)


def _fail(error: Exception, code: int) -> int:
    first, *more = str(error).splitlines() or [""]
    print(f"millstream: {line(first)}", *(f"  {line(each)}" for each in more), sep="\n", file=sys.stderr)
    return code


def _fail_usage(error: Any) -> int:
    """What the command line's library did not understand; its class has had several names and modules."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "millstream"
    text = error.format_message().rstrip(".")
    print(f"millstream: {line(text)}. See {command} --help", file=sys.stderr)
    return codes.USAGE


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"millstream {__version__}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Background jobs and durable events for Python on Redis Streams."""


@cli.command()
def worker(
    app: Annotated[
        str | None, typer.Argument(help="The app, as module:attribute; else $MILLSTREAM_APP, else [tool.millstream] app.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Serve this queue, topic/group, or topic/ (its broadcasts); repeat for more. Default: all."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Coroutines at once, per process.")] = 32,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Plain functions at once, per process.")] = 8,
    processes: Annotated[
        str,
        typer.Option(
            "--processes",
            "-p",
            metavar="N|MIN..MAX",
            envvar="MILLSTREAM_PROCESSES",
            help="Worker processes; of a range, as many as are needed.",
        ),
    ] = "1",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME[,KEY=N]",
            envvar="MILLSTREAM_STRATEGY",
            help="How many of a range are needed: backlog,target=5, threshold,up=2,down=0.5, or your own module:attribute; "
            "each with poll=, hysteresis= and cooldown= in seconds.",
        ),
    ] = "backlog",
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is ready or running.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a source file below this folder changes.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Where the queues are, instead of where the app says.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace", min=0.0, metavar="SECONDS", help="How long running jobs may finish at a stop, instead of the app's."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level", case_sensitive=False, help="Log from this level on, unless the app configures logging itself."
        ),
    ] = "info",
    factory: Factory = False,
    max_jobs: Annotated[
        int,
        typer.Option("--max-jobs", min=0, metavar="N", help="Replace a worker process after N jobs; 0: never."),
    ] = 0,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="Replace one that takes more than this, say 1GB.")
    ] = None,
) -> None:
    """Serve an app's queues until SIGTERM or Ctrl-C.

    Exit codes: 0 all that ran finished; 1 the worker failed; 2 usage or import; 3 server; 4 a handler was interrupted; 5 worker
    processes died as soon as they were started.
    """
    from millstream.cli.worker import start_worker

    start_worker(
        app,
        queues=queue or [],
        concurrency=concurrency,
        threads=threads,
        processes=processes,
        strategy=strategy,
        burst=burst,
        reload=reload,
        url=url,
        grace=grace,
        log_level=log_level,
        factory=factory,
        max_jobs=max_jobs,
        max_memory=max_memory,
    )


@cli.command()
def demo() -> None:
    """Watch a small shop survive failures and a killed worker."""
    from millstream.cli.demo import run_demo

    sys.exit(run_demo())


for each in (queues, jobs, dead, workers, topics, groups):
    cli.add_typer(each)
cli.command("tasks")(list_tasks)
cli.command("enqueue")(enqueue)
cli.command("publish")(publish)
cli.command("doctor")(doctor)
cli.command("bench")(bench)
