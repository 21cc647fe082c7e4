"""Workers on other machines: sessions that live in a broker, servers that host them, workers that run them.

Owns orders, leases, and stops that travel. Knows nothing of HTTP and of the command line.
"""

from .broker import Broker, BrokerError, LeaseInForce
from .memory import MemoryBroker
from .nats import NatsBroker
from .protocol import WorkerInfo
from .remote_host import RemoteHost
from .remote_tool import remote_tool
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
    "remote_tool",
]
