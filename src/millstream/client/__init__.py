"""The client: batches concurrent enqueues, keeps one client per process and event loop, and provides sync versions.

It uses brokers, messages and codecs. Tasks and jobs, the objects that users hold, build on it.
"""

from millstream.client.background import run_sync, sync_version
from millstream.client.client import Backend, Client
from millstream.client.clients import Clients
from millstream.client.inspector import ClientInspector
from millstream.client.keeping import clear_key, reshard, seek
from millstream.client.opening import open_topic
from millstream.client.template import Template, new_request

__all__ = [
    "Backend",
    "Client",
    "ClientInspector",
    "Clients",
    "Template",
    "clear_key",
    "new_request",
    "open_topic",
    "reshard",
    "run_sync",
    "seek",
    "sync_version",
]
