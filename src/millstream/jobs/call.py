"""Calls: a task with its arguments, not enqueued yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from millstream.client import sync_version
from millstream.jobs.job import Job

if TYPE_CHECKING:
    from millstream.jobs.task import Task

R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A task with its arguments, made by ``task.bind(…)``. The arguments are checked when the call is enqueued."""

    task: Task[..., Any]
    """The task, with its options."""
    args: tuple[Any, ...]
    """The positional arguments."""
    kwargs: dict[str, Any]
    """The keyword arguments."""

    async def enqueue(self) -> Job[R_co]:
        """Enqueue the call and return its job. Raises the same errors as ``task.enqueue(…)``."""
        job: Job[R_co] = await self.task.enqueue(*self.args, **self.kwargs)
        return job

    enqueue_sync = sync_version(enqueue)

    def __repr__(self) -> str:
        arguments = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"<call {self.task.name}({', '.join(arguments)})>"
