"""Counters and histograms that cost the engine thread an addition; Prometheus' families are made when asked.

One thread writes an instrument, any thread may read it: a reader may miss the observation that is being made, no more.
"""

import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["Counter", "Histogram", "Instrument", "Instruments", "Reading", "Values"]

Values = Mapping[tuple[str, ...], float]  # by the values of the extra labels
_Instrument = TypeVar("_Instrument", bound="Instrument")


class Instrument(ABC):
    """`labels`: names beside those that all instruments of a set have. `name` has no `_total`."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self.created_s = time.time()

    @abstractmethod
    def family(self, names: Sequence[str], values: Sequence[str]) -> Metric:
        """The family as it is now; `names` and `values` are the labels of the whole set."""


class Counter(Instrument):
    """Only rises. `values`: label values that are shown from the start, at zero."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = (), values: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(name, help, labels)
        self.counts: dict[tuple[str, ...], float] = {tuple(v): 0.0 for v in (values if labels else ((),))}

    def add(self, amount: float = 1.0, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0.0) + amount

    def family(self, names: Sequence[str], values: Sequence[str]) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=(*names, *self.labels))
        for labels, count in tuple(self.counts.items()):
            family.add_metric((*values, *labels), count, self.created_s)
        return family


class Reading(Instrument):
    """What somebody else keeps; read when it is asked for. `kind`: "gauge", or "counter" where it only rises."""

    def __init__(
        self, kind: str, name: str, help: str, read: Callable[[], Values | float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, help, labels)
        self._is_counter = kind == "counter"
        self._read = read

    def family(self, names: Sequence[str], values: Sequence[str]) -> Metric:
        value = self._read()
        readings = value if isinstance(value, Mapping) else {(): value}
        names = (*names, *self.labels)
        if self._is_counter:
            counter = CounterMetricFamily(self.name, self.help, labels=names)
            for labels, reading in readings.items():
                counter.add_metric((*values, *labels), reading, self.created_s)
            return counter
        gauge = GaugeMetricFamily(self.name, self.help, labels=names)
        for labels, reading in readings.items():
            gauge.add_metric((*values, *labels), reading)
        return gauge


class Histogram(Instrument):
    """Counts observations by bucket; a bucket holds what is at most its bound."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        super().__init__(name, help)
        self._bounds = (*map(float, bounds), math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, names: Sequence[str], values: Sequence[str]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=names)
        cumulated, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts[:], strict=True):
            cumulated += count
            buckets.append((floatToGoString(bound), cumulated))  # type: ignore[no-untyped-call]
        family.add_metric(values, buckets, self._sum)
        family.add_sample(f"{self.name}_created", dict(zip(names, values, strict=True)), self.created_s)
        return family


class Instruments(Collector):
    """A set of instruments with labels in common, to be registered in a registry."""

    def __init__(self, names: Sequence[str], values: Sequence[str]) -> None:
        self._names = tuple(names)
        self._values = tuple(values)
        self._all: dict[str, Instrument] = {}

    def counter(
        self, name: str, help: str, labels: Sequence[str] = (), values: Sequence[Sequence[str]] = ()
    ) -> Counter:
        return self._add(Counter(name, help, labels, values))

    def histogram(self, name: str, help: str, bounds: Sequence[float]) -> Histogram:
        return self._add(Histogram(name, help, bounds))

    def reading(
        self, kind: str, name: str, help: str, read: Callable[[], Values | float], labels: Sequence[str] = ()
    ) -> None:
        self._add(Reading(kind, name, help, read, labels))

    def collect(self) -> Iterator[Metric]:
        for instrument in self._all.values():
            yield instrument.family(self._names, self._values)

    def _add(self, instrument: _Instrument) -> _Instrument:
        if instrument.name in self._all:
            raise ValueError(f"there are two metrics {instrument.name}")
        self._all[instrument.name] = instrument
        return instrument
