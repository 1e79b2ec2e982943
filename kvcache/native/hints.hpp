// Where to look for a block that goes on like a prompt for a part of its tokens.
#pragma once

#include <algorithm>
#include <vector>

#include "relocation.hpp"
#include "types.hpp"

namespace kvcache {

// The last block inserted for a parent and a first token, in a direct-mapped table: a byte a
// block. Nothing is taken out; whoever looks compares what he finds. The slots are those of the
// Python core, so that both forget the same.
class Hints {
 public:
  explicit Hints(BlockId num_blocks) : slots_(static_cast<std::size_t>(std::max(1, num_blocks / 4)), kNullBlock) {}

  // `parent` is the null block for the first one of a namespace.
  void note(BlockId parent, Token first, BlockId block) { slots_[slot(parent, first)] = block; }
  BlockId find(BlockId parent, Token first) const { return slots_[slot(parent, first)]; }

  void rename(const Relocation& plan) {
    for (BlockId& block : slots_) block = plan(block);
  }

 private:
  std::size_t slot(BlockId parent, Token first) const {
    return (static_cast<std::uint32_t>(parent) * 2654435761u ^ static_cast<std::uint32_t>(first) * 40503u) % slots_.size();
  }

  std::vector<BlockId> slots_;
};

}  // namespace kvcache
