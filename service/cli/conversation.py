"""The messages of a chat, and taking them back."""

from __future__ import annotations

from service.client import Message, Role


class ChatHistory:
    """Instructions, then questions and answers in turn."""

    def __init__(self, system: str = "") -> None:
        self._system = [Message(Role.SYSTEM, system)] if system else []
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All of it, oldest first."""
        return [*self._system, *self._turns]

    def ask(self, question: str) -> None:
        """Adds the user's message."""
        self._turns.append(Message(Role.USER, question))

    def answer(self, text: str) -> None:
        """Adds the model's message; without a text the question is taken back."""
        if text:
            self._turns.append(Message(Role.ASSISTANT, text))
        else:
            self._turns.pop()

    def reset(self) -> None:
        """Forgets all but the instructions."""
        self._turns.clear()

    def undo(self) -> bool:
        """Takes back the last question and its answer; False when there is none."""
        had_turns = bool(self._turns)
        del self._turns[-2:]
        return had_turns
