"""``millstream …`` and ``python -m millstream …``: where the process begins."""

import sys


def main() -> None:
    """The command line. A worker that is PID 1 splits before all that takes time to import: until then the kernel drops every
    signal, and whoever stops the container would wait in vain."""
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
