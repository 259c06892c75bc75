"""How long a card is heated up before the first measurement, and again after a pause."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuenergy.energy.thermal import Settling

LEAST_PAUSE_S = 5.0
"""After a shorter pause a card is still warm."""
SETTLED = 0.003
"""The preheating ends when the power is not expected to change by more than this fraction, by its
root mean square over all that the run so far leaves open."""
_FIRST_NEWS_S, _NEWS_S = 1.0, 5.0
"""When the time left is announced: at first, and how often from then on."""

Announce = Callable[[float], object]
"""Is told from time to time for how many seconds the preheating may go on."""


class Preheat:
    """The time that a card may be heated up beyond what each measurement needs.

    Args:
        longest_s: in all; a pause of some seconds gives as many back.
        announce: shows the time left.
    """

    def __init__(self, longest_s: float, announce: Announce) -> None:
        self._longest_s = longest_s
        self._left_s = longest_s
        self._announce = announce
        self._since_s: float | None = None
        self._told_s = 0.0

    def paused(self, pause_s: float) -> None:
        """Take note of a pause before a run."""
        if pause_s > LEAST_PAUSE_S:
            self._left_s = min(self._longest_s, self._left_s + pause_s)

    def goes_on(self, now_s: float, settling: Settling | None) -> bool:
        """Whether to heat the card further at ``now_s``; when not, `end` was called."""
        if self._since_s is None:
            self._since_s = now_s
            self._told_s = now_s + _FIRST_NEWS_S - _NEWS_S
        left_s = self._left_s - (now_s - self._since_s)
        if settling is None or settling.possible_gain <= SETTLED or left_s <= 0:
            self.end(now_s)
            return False
        if now_s - self._told_s >= _NEWS_S:
            self._told_s = now_s
            self._announce(left_s)
        return True

    def end(self, now_s: float) -> None:
        """Stop counting: the heat-up is over."""
        if self._since_s is not None:
            self._left_s = max(0.0, self._left_s - (now_s - self._since_s))
            self._since_s = None
