"""Django, Flask, scripts: code without an event loop uses the ``_sync`` version of each async method.

The worker is a separate process. With ``--burst`` it exits when no job is ready or running. Without it, the worker runs until
it is stopped.

    python examples/without_asyncio.py

prints

    report 7 is ready
    3 mails to the customers of report 7
    cancelled
"""

import os
import subprocess
import sys
from pathlib import Path

from millstream import Millstream

app = Millstream(namespace="without-asyncio")


@app.task
def send_report(report: int, customers: list[str]) -> str:
    return f"{len(customers)} mails to the customers of report {report}"


def view(report: int) -> str:
    """A view: enqueue the job and respond immediately."""
    return send_report.enqueue_sync(report, ["ada", "grace", "ken"]).id


def main() -> None:
    job = send_report.job(view(7))  # a later request, maybe in another process, needs only the id
    print(f"report 7 is {job.status_sync()}")

    later = send_report.options(delay=3600).enqueue_sync(8, ["barbara"])

    worker = [sys.executable, "-m", "millstream", "worker", "without_asyncio:app", "--burst"]
    here = str(Path(__file__).parent)  # in a terminal, start the worker in the module's folder
    subprocess.run(worker, env={**os.environ, "PYTHONPATH": here}, check=True, capture_output=True)
    print(job.result_sync(timeout=10))

    later.cancel_sync()
    print(later.status_sync())


if __name__ == "__main__":
    main()
