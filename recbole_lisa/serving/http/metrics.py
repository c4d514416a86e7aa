"""GET /metrics in the text form of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("recbole_lisa_requests", "Answered requests.", ("route", "status"), registry=registry)
        self.seconds = Histogram(
            "recbole_lisa_request_seconds",
            "From the head of a request to the end of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self.dropped = Counter(
            "recbole_lisa_sessions_dropped", "Sessions in memory that ended.", ("reason",), registry=registry
        )
        self.conflicts = Counter(
            "recbole_lisa_session_conflicts", "Writes repeated after another service's write.", registry=registry
        )
        for reason in ("expired", "evicted"):
            self.dropped.labels(reason)

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a number that is read whenever the metrics are."""
        Gauge(f"recbole_lisa_{name}", meaning, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All metrics."""
        return bytes(generate_latest(self._registry))
