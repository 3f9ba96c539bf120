"""Which replica a request goes to, decided when it comes, from what a router can know."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from legato.core.errors import ConfigError
from legato.simulate.traffic import Visit

__all__ = ["ROUTERS", "Router", "make_router"]


class Router(Protocol):
    """loads: requests of each replica that have come and not ended."""

    def route(self, visit: Visit, loads: Sequence[int]) -> int: ...


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, visit: Visit, loads: Sequence[int]) -> int:
        self._next = (self._next + 1) % len(loads)
        return self._next


class LeastLoaded:
    """The one with the fewest requests; of equals, the first after the one taken last."""

    def __init__(self) -> None:
        self._last = 0

    def route(self, visit: Visit, loads: Sequence[int]) -> int:
        least = min(loads)
        try:
            self._last = loads.index(least, self._last + 1)
        except ValueError:
            self._last = loads.index(least)
        return self._last


class PrefixAware:
    """Where the longest beginning of the prompt was sent before, unless that one is much busier than the others.

    A prefix may be known to several replicas, so that a popular one spreads: when all that know it have `slack`
    requests more than the least loaded and twice as many, that one gets the request, and knows the prefix from then on.
    """

    slack = 8

    def __init__(self, most: int = 1_000_000) -> None:
        """most: prefixes that are remembered; the one not used for longest is forgotten."""
        self._most = most
        self._homes: OrderedDict[tuple[int, int], list[int]] = OrderedDict()  # by (length, last id)
        self._others = LeastLoaded()

    def route(self, visit: Visit, loads: Sequence[int]) -> int:
        known = next((homes for key in reversed(_keys(visit)) if (homes := self._homes.get(key))), ())
        chosen = min(known, key=lambda replica: loads[replica], default=-1)
        least = min(loads)
        if chosen < 0 or loads[chosen] > max(least + self.slack, 2 * least):
            chosen = self._others.route(visit, loads)
        for key in _keys(visit):
            homes = self._homes.setdefault(key, [])
            self._homes.move_to_end(key)
            if chosen not in homes:
                homes.append(chosen)
        while len(self._homes) > self._most:
            self._homes.popitem(last=False)
        return chosen


def _keys(visit: Visit) -> list[tuple[int, int]]:
    """One for each beginning that whole shared blocks make. In a trace an id names all that comes before it too."""
    return list(enumerate(visit.shared))


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix": PrefixAware,
}


def make_router(name: str) -> Router:
    if name not in ROUTERS:
        raise ConfigError(f"router: {name!r} is not one of {', '.join(ROUTERS)}")
    return ROUTERS[name]()
