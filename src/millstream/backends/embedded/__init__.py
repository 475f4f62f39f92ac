"""A private server for one data folder. It is started on demand, shared between processes, and stopped when unused.

    server.py       ensure_server and stop_server: join, start, stop
    probe.py        checks what answers at an address, and whether it is the server of this folder
    folder.py       locates the data folder and the socket, and keeps them private
    binary.py       finds the server's executable
    launcher.py     starts a watchdog and a server that outlive the process that started them
    watchdog.py     a small separate program: starts the server, and stops it when it is unused
    files.py        the files that the processes share: locks and the address   ) the watchdog imports these two
    resp.py         the few commands sent to a server                           ) and nothing else of the package

To find out whether a server runs, this package asks the kernel (which process holds the server's lock, which process is at the
other end of a connection) and the server itself. It never uses a pid file. So a copied, moved or deleted folder, a reused pid
or a stale socket never leads to the wrong server, or to two servers. If the socket of a server is deleted, its watchdog, which
is still connected, stops the server. The next process that needs a server starts a new one.
"""

from millstream.backends.embedded.folder import data_folder
from millstream.backends.embedded.server import ensure_server, stop_server

__all__ = ["data_folder", "ensure_server", "stop_server"]
