"""Ways in which a device fails. Each asks for another answer, so each has its own type."""

from __future__ import annotations

from service.device.owner import Owner


class DeviceOutOfMemoryError(Exception):
    """An allocation failed and nothing else did: after giving memory back, work can go on."""

    def __init__(
        self, owner: Owner, wanted_bytes: int, free_bytes: int | None, total_bytes: int | None
    ) -> None:
        """None free or None in all: the allocator that failed did not tell."""
        told = f"{wanted_bytes} bytes wanted for {owner.value}"
        if free_bytes is None or total_bytes is None:
            super().__init__(f"{told}, more than the allocator had")
        else:
            super().__init__(f"{told}, {free_bytes} free of {total_bytes}")
        self.owner = owner
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes


class DeviceLostError(Exception):
    """The device, or this process's hold on it, is beyond repair: only a new process helps."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
