"""The counters of a server, for Prometheus. Knows nothing of HTTP."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.turns = Counter("safepoint_turns", "Turns accepted", registry=registry)
        self.stops = Counter("safepoint_stops", "Stops asked for", ["status"], registry=registry)
        self.ack_seconds = Histogram(
            "safepoint_stop_ack_seconds",
            "From the request to the acknowledgement",
            registry=registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0),
        )
        self.settle_seconds = Histogram(
            "safepoint_stop_settle_seconds",
            "From the stop to the end of the turn",
            registry=registry,
            buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0, 60.0),
        )
        self.streams = Gauge("safepoint_streams", "Open event streams", registry=registry)

    def text(self) -> bytes:
        """The counters in the text format of Prometheus."""
        return generate_latest(self._registry)
