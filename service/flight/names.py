"""Names of flight records: what a folder tells without opening its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from service.flight.kinds import FlightKind, kind_of

_FORM = re.compile(
    r"(?P<time>\d{8}T\d{6}\.\d{6})Z-(?P<process_id>\d{1,10})-(?P<serial>\d{4,10})"
    r"-(?P<word>[a-z-]{1,24})\.json"
)
_TIME = "%Y%m%dT%H%M%S.%f"
_PART_PREFIX, _PART_SUFFIX = ".", ".part"


@dataclass(frozen=True, slots=True, order=True)
class RecordName:
    """The name of a record. The order is that of time."""

    time: datetime  # UTC
    process_id: int  # of the server
    serial: int  # of the record in that server
    word: str  # for the kind; a later version may have one that we do not know

    def __str__(self) -> str:
        time = self.time.astimezone(UTC).strftime(_TIME)
        return f"{time}Z-{self.process_id}-{self.serial:04}-{self.word}.json"

    @property
    def kind(self) -> FlightKind:
        """What the record is about, as far as we know that sort."""
        return kind_of(self.word)

    @property
    def part(self) -> str:
        """The file that becomes the record. Whoever makes it owns the name."""
        return f"{_PART_PREFIX}{self}{_PART_SUFFIX}"


def parse_name(text: str) -> RecordName | None:
    """The name of a record; None: the file is not one of ours."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    try:
        time = datetime.strptime(match["time"], _TIME).replace(tzinfo=UTC)
    except ValueError:  # the 31st of February
        return None
    name = RecordName(time, int(match["process_id"]), int(match["serial"]), match["word"])
    return name if str(name) == text else None  # a number with more zeros than we write


def is_part(text: str) -> bool:
    """Whether a file is a record of ours that is not finished."""
    return (
        text.startswith(_PART_PREFIX)
        and text.endswith(_PART_SUFFIX)
        and parse_name(text.removeprefix(_PART_PREFIX).removesuffix(_PART_SUFFIX)) is not None
    )
