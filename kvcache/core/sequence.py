"""What the Python core keeps of a holder of blocks."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from kvcache.core.states import HolderKind


@dataclass(slots=True, eq=False)
class Holder:
    """Tokens, blocks and progress of a sequence, or of what holds blocks like one."""

    holder_id: int
    kind: HolderKind
    namespace: bytes
    group: int
    level: int  # of retention
    publish: bool  # whether its full blocks go to the index; a flush ends that
    tokens: array[int]
    table: array[int]  # its blocks, in order
    prompt_tokens: int  # tokens that it began with
    computed_tokens: int  # leading tokens whose K and V are written
    published_blocks: int  # leading blocks of the table that are those of the index,
    is_indexed: bool = True  # unless a flush has taken them out

    def block_of_tokens(self, number: int, block_tokens: int) -> bytes:
        """The tokens of a block, as the index compares them."""
        return self.tokens[number * block_tokens : (number + 1) * block_tokens].tobytes()

    def unwritten_blocks(self, block_tokens: int) -> int:
        """Blocks that are held and have no computed token yet."""
        return len(self.table) + -self.computed_tokens // block_tokens

    def slack_tokens(self, block_tokens: int) -> int:
        """Slots that have no token yet."""
        return len(self.table) * block_tokens - len(self.tokens)


def int32_array(data: bytes) -> array[int]:
    """An array of int32 that can grow."""
    values = array("i")
    values.frombytes(data)
    return values
