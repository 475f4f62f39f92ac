"""A task, a job, a worker and a result in one process, without a server to install.

    python examples/first_app.py

prints

    Hello, world!
"""

import asyncio

from millstream import Millstream

app = Millstream(namespace="first-app")


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app:
        job = await greet.enqueue("world")  # the job is stored: it survives a crash of this process
        async with app.worker():  # usually a separate process: millstream worker first_app:app
            print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
