"""A task, a job, a worker, a result, in one process and without a server to install.

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
        job = await greet.enqueue("world")  # accepted: from here on it will run, whatever dies
        async with app.worker():  # elsewhere: millstream worker first_app:app
            print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
