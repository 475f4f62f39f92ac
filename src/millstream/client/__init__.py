"""The client: gathering concurrent enqueues, one client per process and event loop, sync versions.

It knows brokers, messages and codecs; tasks and jobs, which users hold, stand on it.
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
