"""Prometheus metrics of the living instances, through ``prometheus_client``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._living import living_instances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily

    from ..communication import MoEEpCommunication
    from ..stats import CommunicationStats

__all__ = ["StatsCollector", "register_metrics"]

_INSTANCE = ("instance", "backend", "rank", "world_size")
# Metric -> help, further labels.
_METRICS = {
    "moe_ep_steps": ("Phases that ended well", ("phase",)),
    "moe_ep_dispatches": ("Dispatches by transport", ("transport",)),
    "moe_ep_tokens": ("Tokens of this rank", ("phase",)),
    "moe_ep_rows": ("Rows to and from other ranks", ("phase", "direction")),
    "moe_ep_bytes": ("Bytes of these rows", ("phase", "direction")),
    "moe_ep_events": ("Failed steps, recoveries, abandoned rounds", ("event",)),
}
_EVENTS = ("timeouts", "mismatches", "corrupt_counts", "recoveries", "abandoned_rounds")


class StatsCollector:
    """Reads `MoEEpCommunication.stats` of every living instance at each scrape.

    An instance's series end with it. The label ``instance`` numbers the instances of the process in
    the order of their construction; ``backend`` is the class.
    """

    def describe(self) -> list[CounterMetricFamily]:
        """Return the metrics without samples, for a registry to refuse second ones."""
        return list(_families().values())

    def collect(self) -> list[CounterMetricFamily]:
        """Return the metrics; `prometheus_client` calls this, from any thread."""
        families = _families()
        for number, instance in living_instances():
            own = _labels(number, instance)
            for name, labels, value in _samples(instance.stats()):
                families[name].add_metric((*own, *labels), value)
        return list(families.values())


def _families() -> dict[str, CounterMetricFamily]:
    from prometheus_client.core import CounterMetricFamily

    return {
        name: CounterMetricFamily(name, text, labels=(*_INSTANCE, *labels))
        for name, (text, labels) in _METRICS.items()
    }


def _labels(number: int, instance: MoEEpCommunication) -> tuple[str, ...]:
    bootstrap = instance.bootstrap
    return str(number), type(instance).__name__, str(bootstrap.rank), str(bootstrap.world_size)


def _samples(stats: CommunicationStats) -> Iterator[tuple[str, tuple[str, ...], int]]:
    for transport, steps in stats.steps_by_transport.items():
        yield "moe_ep_dispatches", (transport,), steps
    for name, phase in (("dispatch", stats.dispatch), ("combine", stats.combine)):
        yield "moe_ep_steps", (name,), phase.steps
        yield "moe_ep_tokens", (name,), phase.tokens
        yield "moe_ep_rows", (name, "sent"), phase.rows_sent
        yield "moe_ep_rows", (name, "received"), phase.rows_received
        yield "moe_ep_bytes", (name, "sent"), phase.bytes_sent
        yield "moe_ep_bytes", (name, "received"), phase.bytes_received
    for event in _EVENTS:
        yield "moe_ep_events", (event,), getattr(stats, event)


def register_metrics(registry: CollectorRegistry | None = None) -> StatsCollector:
    """Add the metrics of this process's instances, present and future ones, to a registry.

    Parameters
    ----------
    registry
        None is ``prometheus_client.REGISTRY``.

    Returns
    -------
    StatsCollector
        For ``registry.unregister``.

    Raises
    ------
    ModuleNotFoundError
        ``prometheus_client`` is not installed (``pip install moe-ep[metrics]``).
    ValueError
        The registry has these metrics already.
    """
    from prometheus_client import REGISTRY

    collector = StatsCollector()
    (REGISTRY if registry is None else registry).register(collector)
    return collector
