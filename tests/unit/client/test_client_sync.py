"""Sync calls: one background event loop per process, refused where they would block a loop, safe with threads and forks."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millstream import Call, Group, Job, Millstream, Queue, Topic
from millstream.client import ClientInspector
from millstream.client.background import background
from millstream.errors import UsageError
from millstream.jobs.dead import DeadLetters
from millstream.jobs.task import Task
from tests.stage import looped, published

FORKING_THREADS_IS_MEANT = ("-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 and later warn about a fork in a process with threads."""


def build(url: str = "memory://") -> tuple[Millstream, Any]:
    app = Millstream(url)

    @app.task
    async def shrink(n: int) -> int:
        return n

    return app, shrink


def test_every_async_method_of_a_client_has_a_sync_version() -> None:
    for kind in (Task, Call, Job, Queue, Topic, Group, DeadLetters, ClientInspector, Millstream):
        verbs = {
            name for name, member in vars(kind).items() if inspect.iscoroutinefunction(member) and not name.startswith("_")
        }
        # These belong to a worker or a consumer, which need a running loop.
        verbs -= {"broker", "broker_to_serve", "run", "connect_patiently", "worker", "consume"}
        assert {verb for verb in verbs if not callable(getattr(kind, f"{verb}_sync", None))} == set(), kind


def test_a_sync_call_that_cannot_create_an_event_loop_raises_and_the_next_call_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    background.stop()
    _, shrink = build()
    with monkeypatch.context() as full:
        full.setattr(asyncio, "new_event_loop", none_left)
        with pytest.raises(UsageError, match=r"which cannot be started: .*Too many open files"):
            shrink.enqueue_sync(1)
    assert shrink.enqueue_sync(1).status_sync() == "ready"


def test_a_sync_version_behaves_like_its_async_method() -> None:
    app, shrink = build()
    job = shrink.enqueue_sync(1)
    assert job.status_sync() == "ready"
    assert shrink.bind(2).enqueue_sync().cancel_sync() is True
    assert len(app.enqueue_many_sync(shrink.bind(i) for i in range(3))) == 3
    app.queue("default").pause_sync()
    assert app.inspector.queue_sync("default").paused
    assert app.dead.list_sync() == []
    with pytest.raises(TypeError, match="shrink"):
        shrink.enqueue_sync("x")


@looped
async def test_a_sync_call_inside_a_running_loop_is_refused_and_names_the_async_method() -> None:
    app, shrink = build()
    job = await shrink.enqueue(1)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (shrink.enqueue_sync, (1,)),
        (job.result_sync, ()),
        (app.enqueue_many_sync, ([],)),
    ]
    for sync_version, arguments in calls:
        verb = sync_version.__name__.removesuffix("_sync")
        with pytest.raises(UsageError, match=rf"{verb}_sync\(\).*await ….{verb}\("):
            sync_version(*arguments)
    assert await published(app) == {"default": 1}


def test_a_sync_version_has_the_name_and_signature_of_its_async_method() -> None:
    sync_version = vars(Job)["result_sync"]
    assert sync_version.__name__ == "result_sync"
    assert inspect.signature(sync_version) == inspect.signature(Job.result)
    assert not inspect.iscoroutinefunction(sync_version)


def test_many_threads_share_one_background_loop() -> None:
    app, shrink = build()
    shrink.enqueue_sync(0)
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(shrink.enqueue_sync, range(100)))
    assert len({job.id for job in jobs}) == 100
    assert [thread.name for thread in threading.enumerate()].count("millstream-sync") == 1
    assert app.inspector.queue_sync("default").ready == 101


def test_one_app_works_in_consecutive_event_loops_and_in_the_background_loop() -> None:
    app, shrink = build()
    ids = [asyncio.run(shrink.enqueue(i)).id for i in range(3)]
    ids.append(shrink.enqueue_sync(3).id)
    assert len({job_id.partition("-")[0] for job_id in ids}) == 4, "one incarnation per loop"
    assert app.inspector.queue_sync("default").ready == 4


def script(folder: Path, body: str, *options: str) -> str:
    """Run a program against its own embedded server."""
    head = f"""
        import asyncio, os, sys
        from millstream import Millstream
        app = Millstream("embedded://{folder / "data"}")
        @app.task
        async def shrink(n: int) -> int:
            return n
        """
    file = folder / "program.py"
    file.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    done = subprocess.run([sys.executable, *options, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    from millstream.backends.embedded import stop_server

    yield tmp_path
    stop_server(tmp_path / "data")


def test_a_parent_and_its_forked_children_can_all_continue_to_enqueue(folder: Path) -> None:
    # As with `gunicorn --preload`: the parent has enqueued, then forks children, and all of them continue to enqueue.
    said = script(
        folder,
        """
        ids = [shrink.enqueue_sync(0).id]
        asyncio.run(shrink.enqueue(1))
        readable, writable = os.pipe()
        children = []
        for number in range(2):
            child = os.fork()
            if child == 0:
                mine = [shrink.enqueue_sync(2).id, asyncio.run(shrink.enqueue(3)).id]
                os.write(writable, (" ".join(mine) + " ").encode())
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        os.close(writable)
        ids += os.read(readable, 10_000).decode().split()
        ids += [shrink.enqueue_sync(4).id]
        print(len(ids), len(set(ids)), app.inspector.queue_sync("default").ready)
        """,
        *FORKING_THREADS_IS_MEANT,
    )
    assert said.split() == ["6", "6", "7"]


def test_a_fork_inside_a_running_loop_does_not_affect_the_parents_connection(folder: Path) -> None:
    said = script(
        folder,
        """
        async def main():
            await shrink.enqueue(1)
            child = os.fork()
            if child == 0:
                import gc
                asyncio._set_running_loop(None)
                asyncio.run(shrink.enqueue(2))
                gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            for i in range(3):
                await shrink.enqueue(i)
            print((await app.inspector.queue("default")).ready)
        asyncio.run(main())
        """,
        *FORKING_THREADS_IS_MEANT,
    )
    assert said.split() == ["5"]


def test_a_short_script_exits_without_warnings_or_pending_tasks(folder: Path) -> None:
    said = script(
        folder,
        """
        async def main():
            jobs = await app.enqueue_many(shrink.bind(i) for i in range(3))
            waiting = asyncio.create_task(jobs[0].result())
            await asyncio.sleep(0.01)
            print(len(jobs))
        asyncio.run(main())
        print(shrink.enqueue_sync(1).status_sync())
        """,
        "-W",
        "error",
    )
    assert said.split() == ["3", "ready"]
