"""The broker over the network: NATS with JetStream. Needs the extra `nats` to connect, and only then."""

from .broker import NatsBroker

__all__ = ["NatsBroker"]
