"""Sessions that run on other machines: a broker keeps them, servers give access to them, and workers run their turns.

Knows nothing of HTTP and of the command line.
"""

from .broker import Broker, BrokerError, LeaseInForce
from .memory import MemoryBroker
from .nats import NatsBroker
from .protocol import WorkerInfo
from .remote_host import RemoteHost
from .remote_tool import remote_tool
from .supervisor import WorkerTimings
from .worker import Worker

__all__ = [
    "Broker",
    "BrokerError",
    "LeaseInForce",
    "MemoryBroker",
    "NatsBroker",
    "RemoteHost",
    "Worker",
    "WorkerInfo",
    "WorkerTimings",
    "remote_tool",
]
