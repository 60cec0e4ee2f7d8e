"""What the test of the benchmarks' processes runs in one: it does as it is asked."""

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any


def prepare(greeting: str) -> Callable[[str], dict[str, Any]]:
    def answer(request: str) -> dict[str, Any]:
        if request == "sleep":
            time.sleep(600)
        if request == "exit":
            os._exit(3)
        if request == "fail":
            raise ValueError("asked to\nwith more to say")
        return {
            "said": f"{greeting} {request}",
            "variable": os.environ.get("ECHO_VARIABLE"),
            "start_method": multiprocessing.get_start_method(),
        }

    return answer
