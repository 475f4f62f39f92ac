"""Entry point of ``millstream …`` and ``python -m millstream …``."""

import sys


def main() -> None:
    """Run the command line.

    A worker that is PID 1 forks before the slow imports. Until then the kernel drops every signal, so that a container could
    not be stopped.
    """
    if sys.argv[1:2] == ["worker"]:
        from millstream.worker.supervisor.init import split_if_first

        split_if_first()
        from millstream.worker.roles import play

        if play():
            return
    from millstream.cli.main import main

    main()


if __name__ == "__main__":
    main()
