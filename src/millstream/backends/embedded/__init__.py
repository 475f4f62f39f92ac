"""A private server for one data folder: found or started, shared between processes, stopped when unused.

    server.py       ensure_server and stop_server: join, start, stop
    probe.py        what answers at an address, and whether it is this folder's server
    folder.py       where the data folder and the socket are, and that they are ours alone
    binary.py       the server's program
    launcher.py     a watchdog and a server that outlive the process that started them
    watchdog.py     a small program of its own: starts the server, stops it when nobody uses it
    files.py        the files the processes meet at: locks and the address      ) the watchdog imports these two,
    resp.py         the few questions asked of a server                         ) and nothing else of the package

Whether a server lives is asked of the kernel (who holds its lock, who is at the other end of a connection) and of the
server, never of a pid file. So a copied, moved or deleted folder, a reused pid or a stale socket never leads to the wrong
server, or to two. Who can reach a server stops it: a server whose socket was deleted is stopped by its watchdog, which is
connected, and started anew by the next to ask.
"""

from millstream.backends.embedded.folder import data_folder
from millstream.backends.embedded.server import ensure_server, stop_server

__all__ = ["data_folder", "ensure_server", "stop_server"]
