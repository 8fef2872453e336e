"""The process that :mod:`~joblib_envs.harness.isolation` starts: one function, then the end."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Receive a function over an inherited pipe, call it, and send what it says.

    A thread ends the process, and with it its workers, as soon as the parent is gone.
    """
    import cloudpickle
    from threadpoolctl import threadpool_limits

    connection = Connection(descriptor)
    function, arguments = cloudpickle.loads(connection.recv_bytes())
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    lock = threading.Lock()

    def send(*message: Any) -> None:
        with lock:
            connection.send_bytes(cloudpickle.dumps(message))

    with threadpool_limits(1):
        function(send, *arguments)
    send("finished")


def _end_with_parent(connection: Connection) -> None:
    try:
        connection.recv_bytes()  # the parent never sends a second message
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
