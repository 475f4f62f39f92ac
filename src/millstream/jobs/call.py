"""A call: a task with its arguments, not yet enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from millstream.client import sync_version
from millstream.jobs.job import Job

if TYPE_CHECKING:
    from millstream.jobs.task import Task

R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A task with its arguments, as ``task.bind`` stores them. They are checked when the call is enqueued."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    async def enqueue(self) -> Job[R_co]:
        """Enqueue it, as ``task.enqueue(...)`` does."""
        job: Job[R_co] = await self.task.enqueue(*self.args, **self.kwargs)
        return job

    enqueue_sync = sync_version(enqueue)

    def __repr__(self) -> str:
        arguments = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"<call {self.task.name}({', '.join(arguments)})>"
