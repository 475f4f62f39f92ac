"""The commands, their options and their help. What they do is in a file each."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millstream._version import __version__
from millstream.errors import MillstreamError, UsageError
from millstream.worker import codes

cli = typer.Typer(
    name="millstream",
    help="Background jobs for Python on Redis Streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point: one-line errors, exit codes scripts can rely on."""
    try:
        cli()
    except UsageError as error:
        _fail(error, codes.USAGE)
    except MillstreamError as error:
        _fail(error, codes.FAILED)


def _fail(error: Exception, code: int) -> None:
    print(f"millstream: {error}", file=sys.stderr)
    sys.exit(code)


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
    """Background jobs for Python on Redis Streams."""


@cli.command()
def worker(
    app: Annotated[
        str | None, typer.Argument(help="The app, as module:attribute; else $MILLSTREAM_APP, else [tool.millstream] app.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="Serve this queue; repeat for more. Default: all the app's.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Coroutines at once, per process.")] = 32,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Plain functions at once, per process.")] = 8,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is ready or running.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a source file below this folder changes.")] = False,
) -> None:
    """Serve an app's queues until SIGTERM or Ctrl-C.

    Exit codes: 0 all that ran finished; 1 the worker failed; 2 usage or import; 3 server; 4 a handler was interrupted.
    """
    from millstream.cli.worker import start_worker

    start_worker(
        app, queues=queue or [], concurrency=concurrency, threads=threads, processes=processes, burst=burst, reload=reload
    )


@cli.command()
def demo() -> None:
    """Watch a small workload survive failures, retries and a killed worker."""
    from millstream.cli.demo import run_demo

    sys.exit(run_demo())
