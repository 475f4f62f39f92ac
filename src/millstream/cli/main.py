"""Assembles the commands, each defined in its own file, and turns errors into one line and an exit code."""

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
"""The exit code that shells use for a command ended by Ctrl-C: 128 + SIGINT."""

ORDER = ("worker", "enqueue", "publish", "queues", "jobs", "dead", "topics", "groups", "workers", "tasks", "doctor", "bench")
"""Order of the commands in the help. Commands not listed here follow."""


LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class Commands(TyperGroup):
    """The top-level commands, most used first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


cli = typer.Typer(
    cls=Commands,
    name="millstream",
    help="Background jobs and durable events for Python on Redis Streams.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rendering help with rich took twice as long
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the ``millstream`` command. Errors print one line; exit codes are stable for scripts."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = cli(args or ["--help"], prog_name="millstream", standalone_mode=False)
        sys.stdout.flush()
        return codes.USAGE if not args else code if isinstance(code, int) else codes.OK
    except UsageError as error:
        return _fail(error, codes.USAGE)
    except (ShardsChanged, ShardsInUse) as error:
        return _fail(error, codes.FAILED)  # the server itself works
    except BrokerError as error:
        return _fail(error, codes.SERVER)
    except MillstreamError as error:
        return _fail(error, codes.FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Discard buffered output, or flushing it at exit would raise again.
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
    """Print a usage error of the command-line library. Untyped, because its class has had several names and modules."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "millstream"
    text = error.format_message().rstrip(".")
    print(f"millstream: {line(text)} (see {command} --help)", file=sys.stderr)
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
        str | None,
        typer.Argument(help="The app, as module:attribute. Default: $MILLSTREAM_APP, then app in [tool.millstream]."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            help="Serve only this queue, topic/group, or topic/ (broadcasts of the topic). Repeat for several. Default: all.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Maximum number of concurrent async handlers per process.")
    ] = 32,
    threads: Annotated[
        int, typer.Option("--threads", "-t", min=1, help="Maximum number of concurrent sync handlers per process.")
    ] = 8,
    processes: Annotated[
        str,
        typer.Option(
            "--processes",
            "-p",
            metavar="N|MIN..MAX",
            envvar="MILLSTREAM_PROCESSES",
            help="Number of worker processes, or MIN..MAX to scale automatically.",
        ),
    ] = "1",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME[,KEY=N]",
            envvar="MILLSTREAM_STRATEGY",
            help="How to scale within MIN..MAX: backlog,target=5 or threshold,up=2,down=0.5 or your own module:attribute. "
            "All accept poll=, hysteresis= and cooldown= in seconds.",
        ),
    ] = "backlog",
    burst: Annotated[bool, typer.Option("--burst", help="Exit when no job is ready or running.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a source file in or below this folder changes.")
    ] = False,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Server URL. Default: the app's.")] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace", min=0.0, metavar="SECONDS", help="Time for running jobs to finish at shutdown. Default: the app's."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level", case_sensitive=False, help="Minimum log level. Ignored if the app configures logging itself."
        ),
    ] = "info",
    factory: Factory = False,
    max_jobs: Annotated[
        int,
        typer.Option("--max-jobs", min=0, metavar="N", help="Replace a worker process after N jobs. 0 disables it."),
    ] = 0,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", metavar="SIZE", help="Replace a worker process that uses more memory than SIZE, such as 1GB."
        ),
    ] = None,
) -> None:
    """Serve the queues and groups of an app until SIGTERM or Ctrl-C.

    Exit codes: 0 all running jobs finished; 1 the worker failed; 2 usage or import error; 3 the server is unreachable or
    refuses access; 4 a handler was interrupted; 5 worker processes kept dying right after their start.
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
    """Watch a small shop survive errors and a killed worker."""
    from millstream.cli.demo import run_demo

    sys.exit(run_demo())


for each in (queues, jobs, dead, workers, topics, groups):
    cli.add_typer(each)
cli.command("tasks")(list_tasks)
cli.command("enqueue")(enqueue)
cli.command("publish")(publish)
cli.command("doctor")(doctor)
cli.command("bench")(bench)
