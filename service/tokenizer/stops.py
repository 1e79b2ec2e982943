"""Finds stop strings in a stream of text, whatever its chunks are.

The automaton is that of Aho and Corasick, "Efficient string matching: an aid to
bibliographic search" (CACM 18(6), 1975): one state per distinct prefix of a stop string.
The depth of the state that the stream is in *is* the length of the longest suffix that may
still become a stop string, so exactly that much is held back, and no character is looked
at twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None  # the longest proper suffix that is a prefix too; None: root
    stop: str | None = None  # the longest stop string that ends here


class StopMatcher:
    """Passes text through until a stop string is complete.

    The stop string whose last character comes first wins: that is the moment at which
    generation ends, however the text is cut into chunks. Of several that end on the same
    character the longest wins. Text before it is emitted, text after it is dropped.
    """

    __slots__ = ("_held", "_include_stop", "_matched", "_root", "_state")

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError(f"stop[{list(stops).index('')}] is empty")
        self._root = _automaton(stops)
        self._state = self._root
        self._include_stop = include_stop
        self._held = ""
        self._matched = False

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes the next chunk; answers what may be sent now, and the stop string if it came.

        After a match every further chunk is dropped.
        """
        if self._matched:
            return "", None
        state, root = self._state, self._root
        for index, char in enumerate(text):
            following = state.next.get(char)
            while following is None and state.fallback is not None:
                state = state.fallback
                following = state.next.get(char)
            state = following or root
            if state.stop is not None:
                return self._match(self._held + text[: index + 1], state.stop)
        self._state = state
        seen = self._held + text
        safe = len(seen) - state.depth
        self._held = seen[safe:]
        return seen[:safe], None

    def finish(self) -> str:
        """The stream is over: answers the text held back, which no longer can become a stop."""
        held, self._held = self._held, ""
        self._state = self._root
        return held

    def _match(self, seen: str, stop: str) -> tuple[str, str]:
        self._matched = True
        self._held = ""
        return (seen if self._include_stop else seen[: -len(stop)]), stop


def _automaton(stops: Sequence[str]) -> _State:
    root = _State(0)
    for stop in stops:
        state = root
        for char in stop:
            state = state.next.setdefault(char, _State(state.depth + 1))
        state.stop = stop
    # Breadth first: the fallback of a state is shallower, so it is complete already.
    queue = deque(root.next.values())
    for child in root.next.values():
        child.fallback = root
    while queue:
        state = queue.popleft()
        for char, child in state.next.items():
            fallback = state.fallback
            while fallback is not None and char not in fallback.next:
                fallback = fallback.fallback
            child.fallback = root if fallback is None else fallback.next[char]
            if child.stop is None:
                child.stop = child.fallback.stop
            queue.append(child)
    return root
