"""Our instruments expose what Prometheus' own client library would."""

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from legato.engine.instruments import Instruments

BOUNDS = (0.1, 0.25, 1, 2.5, 10, 1000, 1e6, 2.5e8)


def exposed(registry: CollectorRegistry) -> list[str]:
    """The exposition, without the times at which the series began."""
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in lines]


def ours() -> tuple[CollectorRegistry, Instruments]:
    registry, instruments = CollectorRegistry(), Instruments(("model_name", "engine"), ("a b", "0"))
    registry.register(instruments)
    return registry, instruments


@given(st.lists(st.floats(0, 1e9) | st.sampled_from(BOUNDS)))
@example([1.0, 1.0000001, 0.0])
def test_a_histogram_is_the_client_librarys(values: list[float]) -> None:
    registry, instruments = ours()
    histogram = instruments.histogram("vllm:time_seconds", "A time.", BOUNDS)
    theirs = CollectorRegistry()
    labelled = Histogram("vllm:time_seconds", "A time.", ("model_name", "engine"), registry=theirs, buckets=BOUNDS)
    other = labelled.labels("a b", "0")
    for value in values:
        histogram.observe(value)
        other.observe(value)
    assert exposed(registry) == exposed(theirs)


@given(st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 10**6))))
def test_counters_and_gauges_are_the_client_librarys(steps: list[tuple[str, int]]) -> None:
    registry, instruments = ours()
    counter = instruments.counter("vllm:ends", "Ends.", ("reason",), [("x",), ("y",)])
    last = {("x",): 0.0, ("y",): 0.0}
    instruments.reading("gauge", "legato:last", "The last step.", lambda: last, ("reason",))
    theirs = CollectorRegistry()
    names = ("model_name", "engine", "reason")
    their_counter = Counter("vllm:ends", "Ends.", names, registry=theirs)
    their_gauge = Gauge("legato:last", "The last step.", names, registry=theirs)
    for reason in ("x", "y"):
        their_counter.labels("a b", "0", reason)
        their_gauge.labels("a b", "0", reason)
    for reason, amount in steps:
        counter.add(amount, reason)
        last[reason,] = amount
        their_counter.labels("a b", "0", reason).inc(amount)
        their_gauge.labels("a b", "0", reason).set(amount)
    assert exposed(registry) == exposed(theirs)


def test_a_name_is_taken_once() -> None:
    _, instruments = ours()
    instruments.counter("legato:a", "A.")
    with pytest.raises(ValueError, match="two metrics legato:a"):
        instruments.reading("gauge", "legato:a", "A.", lambda: 1.0)


def test_a_reader_beside_the_writer_sees_whole_histograms_that_only_grow() -> None:
    registry, instruments = ours()
    histogram = instruments.histogram("vllm:time_seconds", "A time.", BOUNDS)
    started, enough = threading.Event(), threading.Event()

    def write() -> None:
        while not enough.is_set():
            histogram.observe(0.5)
            histogram.observe(50)
            started.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert started.wait(30)
        counts = []
        for _ in range(50):
            (family,) = registry.collect()
            values = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            assert values == sorted(values)
            (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
            assert count == values[-1]
            counts.append(count)
        assert counts == sorted(counts)
    finally:
        enough.set()
        thread.join()
