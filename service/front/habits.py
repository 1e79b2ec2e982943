"""What requests of a tenant turn out to be like, which they do not say beforehand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from service.front.forecast import Turnover

_WEIGHT = 0.05  # of the newest observation, when there are many
_BELIEF = 30  # requests of a tenant after which its own habit counts as much as that of all
_FRESH_SECONDS = 30.0  # for which a mean counts in full; then it halves in as much time again
_MAX_TENANTS = 1024  # of which habits are remembered


@dataclass(slots=True)
class AgeingMean:
    """A moving average that fades to 0 when nothing new comes.

    Who is refused because of it gives no new evidence. So it may not stand for ever.
    """

    _value: float = 0.0
    _count: int = 0
    _noted_seconds: float = 0.0

    def note(self, value: float, now_seconds: float) -> None:
        """Takes an observation."""
        before = self.at(now_seconds) or 0.0
        self._count += 1
        self._value = before + max(_WEIGHT, 1 / self._count) * (value - before)
        self._noted_seconds = now_seconds

    @property
    def count(self) -> int:
        """Observations."""
        return self._count

    def at(self, now_seconds: float) -> float | None:
        """The mean; None when nothing was observed."""
        if not self._count:
            return None
        stale_seconds = max(0.0, now_seconds - self._noted_seconds - _FRESH_SECONDS)
        # A mean of days ago is as good as 0, and 0.5 to that power is no float.
        return float(self._value * 0.5 ** min(stale_seconds / _FRESH_SECONDS, 64.0))


@dataclass(slots=True)
class _Habit:
    output_tokens: AgeingMean = field(default_factory=AgeingMean)  # of a candidate
    prompt_tokens: AgeingMean = field(default_factory=AgeingMean)  # that no cache had
    computed_share: AgeingMean = field(default_factory=AgeingMean)  # of the prompts


_NO_HABIT = _Habit()


class Habits:
    """Output lengths and hits of the prefix cache, by tenant and of all together."""

    def __init__(self) -> None:
        self._all = _Habit()
        self._tenants: OrderedDict[str, _Habit] = OrderedDict()

    def note_start(
        self, tenant: str, prompt_tokens: int, cached_tokens: int, now_seconds: float
    ) -> None:
        """A request entered the batch; the cache had so much of its prompt."""
        computed_tokens = max(0, prompt_tokens - cached_tokens)
        for habit in (self._all, self._of(tenant)):
            habit.prompt_tokens.note(computed_tokens, now_seconds)
            habit.computed_share.note(computed_tokens / prompt_tokens, now_seconds)

    def note_end(
        self, tenant: str, output_tokens: float, now_seconds: float, *, was_cut: bool
    ) -> None:
        """A candidate ended after so much output, or was cut and might have said more."""
        for habit in (self._all, self._of(tenant)):
            expected = habit.output_tokens.at(now_seconds)
            if not was_cut or (output_tokens > (expected or 0.0)):
                habit.output_tokens.note(output_tokens, now_seconds)

    def output_tokens(self, tenant: str, now_seconds: float) -> float | None:
        """Expected of a candidate of this tenant; None: nobody knows."""
        habit = self._tenants.get(tenant, _NO_HABIT)
        return _blend(habit.output_tokens, self._all.output_tokens, now_seconds)

    def computed_share(self, tenant: str, now_seconds: float) -> float:
        """Share of a prompt that no cache has; 0 while nobody knows."""
        habit = self._tenants.get(tenant, _NO_HABIT)
        return _blend(habit.computed_share, self._all.computed_share, now_seconds) or 0.0

    def turnover(self, now_seconds: float) -> Turnover:
        """What sequences of all tenants are like; nothing while nobody knows."""
        output_tokens = self._all.output_tokens.at(now_seconds)
        prompt_tokens = self._all.prompt_tokens.at(now_seconds)
        if not output_tokens or not prompt_tokens:
            return Turnover(output_tokens or 0.0, 0.0)
        return Turnover(output_tokens, prompt_tokens / output_tokens)

    def _of(self, tenant: str) -> _Habit:
        habit = self._tenants.setdefault(tenant, _Habit())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > _MAX_TENANTS:
            self._tenants.popitem(last=False)
        return habit


def _blend(own: AgeingMean, others: AgeingMean, now_seconds: float) -> float | None:
    """The own mean, as far as there is enough behind it, and for the rest that of all.

    Where it is full whoever is expected to take a little less gets in before others, so chance
    among few observations must not decide.
    """
    mean = others.at(now_seconds)
    own_mean = own.at(now_seconds)
    if mean is None or own_mean is None:
        return mean
    return (own.count * own_mean + _BELIEF * mean) / (own.count + _BELIEF)
