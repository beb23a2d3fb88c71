"""The metrics of a broker: its page, and the samples of one metric."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from actors.host.figures import Value
from tests.actors.broker.brokers import Peer
from tests.actors.host.metrics.scrapes import sent


async def scrape(port: int) -> dict[str, Metric]:
    """Return the families of a page by name, which for a counter has no `_total`."""
    response = await sent(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return {each.name: each for each in text_string_to_metric_families(body.decode())}


async def samples(peer: Peer, metric: str) -> dict[tuple[str, ...], Value]:
    """Return the values of a metric by the values of its own labels."""
    figure = next(each for each in peer.figures if each.metric == metric)
    if figure.refresh is not None:
        await figure.refresh()
    return {sample.labels: sample.value for sample in figure.samples()}
