"""The app of ``jobs`` with an error observer that records every problem."""

from __future__ import annotations

import json
import os

import jobs  # a worker's working directory is this folder

from millstream import Millstream, Problem

app: Millstream = jobs.app


@app.on_error
def write(problem: Problem) -> None:
    line = json.dumps(
        [
            problem.during,
            type(problem.error).__name__,
            str(problem.error),
            problem.queue,
            problem.job_id,
            problem.crash,
            problem.streak,
            os.getpid(),
        ]
    )
    with open(os.environ["LEDGER"] + ".problems", "a") as file:
        file.write(line + "\n")
