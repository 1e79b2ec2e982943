// Where the blocks at the tail of a shrinking pool go.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "types.hpp"

namespace kvcache {

// Moves of blocks, and the id that each block has afterwards.
class Relocation {
 public:
  Relocation(BlockId num_blocks, BlockId old_num_blocks)
      : num_blocks_(num_blocks), targets_(static_cast<std::size_t>(std::max(0, old_num_blocks - num_blocks)), kNullBlock) {}

  void add(BlockId source, BlockId destination) {
    targets_[static_cast<std::size_t>(source - num_blocks_)] = destination;
    moves_.emplace_back(source, destination);
  }

  const std::vector<std::pair<BlockId, BlockId>>& moves() const { return moves_; }

  // The id that a block has afterwards: its own, unless it moves.
  BlockId operator()(BlockId block) const {
    const auto place = static_cast<std::size_t>(block - num_blocks_);
    return block < num_blocks_ || place >= targets_.size() || targets_[place] == kNullBlock ? block : targets_[place];
  }

 private:
  BlockId num_blocks_;
  std::vector<BlockId> targets_;  // of the blocks from num_blocks_ on
  std::vector<std::pair<BlockId, BlockId>> moves_;
};

}  // namespace kvcache
