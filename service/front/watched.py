"""A value whose changes can be awaited by any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Watched(Generic[T]):
    """Holds the present value. A slow reader sees the latest value, not every one between."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Stores the value and wakes the readers if it is a new one."""
        if value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self) -> AsyncIterator[T]:
        """Yields the value now, then after each change. Never ends by itself."""
        seen = self._value
        yield seen
        while True:
            if self._value == seen:
                await self._changed.wait()
                continue
            seen = self._value
            yield seen

    async def wait_for(self, accept: Callable[[T], bool]) -> T:
        """Waits until the value is accepted, and answers it."""
        while not accept(self._value):
            await self._changed.wait()
        return self._value
