"""Peer: requests to an actor of Ray in another process.

Prints one JSON object a figure: {"name", "value", "unit"}, named as messaging_bench names them. A
tensor is a numpy array here: Ray's object store shares those, and takes four times as long with
torch's tensors.
"""

from __future__ import annotations

import os
import shutil
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy
import ray
from asking import Asking, measure

STORE_BYTES = 1 << 30


@ray.remote
class Server:
    """An actor in a process of its own."""

    def echo(self, number: int) -> int:
        return number

    def count(self, values: numpy.ndarray) -> int:
        return values.nbytes


def main() -> None:
    directory = tempfile.mkdtemp(prefix="ray-")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
             object_store_memory=STORE_BYTES, _temp_dir=directory, _node_ip_address="127.0.0.1")
    try:
        server = Server.remote()
        measure(Asking(
            echo=lambda number: ray.get(server.echo.remote(number)),
            echo_all=lambda numbers: ray.get([server.echo.remote(number) for number in numbers]),
            payload=lambda size: numpy.ones(size, dtype=numpy.uint8),
            count=lambda values: ray.get(server.count.remote(values))),
            requests=2048, window=1024)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
