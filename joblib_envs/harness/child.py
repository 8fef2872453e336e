"""The process that :mod:`~joblib_envs.harness.isolation` starts: one function, then the end."""

from __future__ import annotations

import os
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Receive a function over an inherited pipe, call it, and send what it says."""
    import cloudpickle
    from threadpoolctl import threadpool_limits

    import joblib_envs.harness.isolation  # noqa: F401 - ready for the moment when the parent vanishes

    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    function, arguments, takes_requests = cloudpickle.loads(connection.recv_bytes())
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_take_requests, args=(connection, requests), daemon=True).start()

    def send(*message: Any) -> None:
        connection.send_bytes(cloudpickle.dumps(message))

    with threadpool_limits(1):
        if takes_requests:
            function(send, iter(requests.get, (None,)), *arguments)
        else:
            function(send, *arguments)
    send("finished")


def _take_requests(connection: Connection, requests: queue.SimpleQueue[Any]) -> None:
    """Queue the parent's requests; end the process, and all it started, as soon as the parent is gone."""
    import cloudpickle

    from joblib_envs.harness.isolation import end_descendants

    try:
        while True:
            requests.put(cloudpickle.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        end_descendants()
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
