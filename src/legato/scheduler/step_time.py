"""How long steps take, learned from those that were measured, and how long a chunk may be beside running decodes."""

from math import sqrt

__all__ = ["StepBudget", "StepTimes"]

# A cell's averages move by this share at least, so that a machine that changes its speed is followed in a few steps.
_NEWEST = 0.125
# A measured time counts as no more than this many times its cell's average, and no less than its reciprocal; the first
# of a cell as no more than the square of this times what the others say. A process that was suspended for a second says
# nothing about the next step.
_OUTLIER = 2.0
_ENOUGH = 8  # cells that can say something about another
_SWEEPS = 20
_ANY = 1 << 30  # rows: more than any step takes
_AIM = 0.95  # of the limit: half of the steps take longer than the average of their size


class StepTimes:
    """Milliseconds of a step, as a sum of its rows, its pairs and a constant, each at a price that is not negative.

    A pair is a row and a position that it attends to, itself included: a chunk of r rows that begins at position p has
    r * p + r * (r + 1) / 2 of them.

    Measured steps are averaged in cells by the binary orders of magnitude of both counts, and the prices are the least
    squares of the cells' errors. So thousands of equal decode steps weigh as much as one step of another size, what was
    once learned of a size is kept, and long steps, which the limit is about, are met best. The same measurements give
    the same prices.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], list[float]] = {}  # steps seen; averages of rows, pairs, ms
        self._prices = [0.0, 0.0, 0.0]  # ms per row, per pair, per step
        self._stale = False
        self._warm = False

    def record(self, rows: int, pairs: int, ms: float) -> None:
        """A step took `ms`. The first one, which touches the weights for the first time, says nothing; nor does one
        without a duration (a clock that stands still)."""
        if ms <= 0 or not self._warm:
            self._warm = True
            return
        key = rows.bit_length(), pairs.bit_length()
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= _ENOUGH:
                ms = min(ms, _OUTLIER**2 * self.predict(rows, pairs))
            cell = self._cells[key] = [0.0, 0.0, 0.0, ms]
        cell[0] += 1
        share = max(1 / cell[0], _NEWEST)
        cell[1] += share * (rows - cell[1])
        cell[2] += share * (pairs - cell[2])
        cell[3] += share * (min(max(ms, cell[3] / _OUTLIER), cell[3] * _OUTLIER) - cell[3])
        self._stale = True

    def prices(self) -> tuple[float, float, float]:
        """Milliseconds per row, per pair and per step; all 0 as long as nothing was measured."""
        if self._stale:
            self._fit()
            self._stale = False
        row, pair, step = self._prices
        return row, pair, step

    def predict(self, rows: int, pairs: int) -> float:
        """Milliseconds of a step; 0 as long as nothing was measured."""
        row, pair, step = self.prices()
        return row * rows + pair * pairs + step

    def _fit(self) -> None:
        """Coordinate descent from the prices of the last fit. What one size alone can say is put down to the rows."""
        gram = [[0.0] * 3 for _ in range(3)]
        target = [0.0] * 3
        for _, rows, pairs, ms in self._cells.values():
            columns = (rows, pairs, 1.0)
            for i, left in enumerate(columns):
                target[i] += left * ms
                for j, right in enumerate(columns):
                    gram[i][j] += left * right
        prices = self._prices
        for _ in range(_SWEEPS):
            for i in range(3):
                error = target[i] - sum(gram[i][j] * prices[j] for j in range(3))
                prices[i] = max(0.0, prices[i] + error / gram[i][i])


class StepBudget:
    """The milliseconds that a step has left for chunks, beside the decodes that it holds already."""

    def __init__(self, times: StepTimes, limit_ms: float, rows: int, pairs: int, least: int) -> None:
        """`rows` and `pairs` are those of the decodes. There is always time for `least` rows of the first chunk."""
        self._row, self._pair, _ = times.prices()
        self._left = _AIM * limit_ms - times.predict(rows, pairs)
        self._least = least

    def rows(self, start: int) -> int:
        """How many rows of a chunk that begins at position `start` there is time for."""
        if self._left <= 0:
            return self._least
        first = self._row + self._pair * (start + 0.5)  # r rows cost r * first + r * r * pair / 2
        root = first + sqrt(first * first + 2 * self._pair * self._left)
        return max(self._least, int(min(2 * self._left / root, _ANY))) if root else _ANY

    def spend(self, start: int, rows: int) -> None:
        """The step gets this chunk."""
        self._left -= rows * (self._row + self._pair * (start + (rows + 1) / 2))
        self._least = 0
