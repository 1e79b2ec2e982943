"""Ways in which a device fails. Each asks for another answer, so each has its own type."""

from __future__ import annotations

from service.device.owner import Owner


class DeviceOutOfMemoryError(Exception):
    """An allocation failed and nothing else did: after giving memory back, work can go on."""

    def __init__(
        self, owner: Owner, wanted_bytes: int, free_bytes: int | None, total_bytes: int | None
    ) -> None:
        """None: the allocator that failed did not tell."""
        super().__init__(
            f"{wanted_bytes} bytes wanted for {owner.value}, {_figure(free_bytes)} free of "
            f"{_figure(total_bytes)}"
        )
        self.owner = owner
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes


class DeviceLostError(Exception):
    """The device, or this process's hold on it, is beyond repair: only a new process helps."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


def _figure(size_bytes: int | None) -> str:
    return "an unknown number" if size_bytes is None else str(size_bytes)
