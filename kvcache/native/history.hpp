// The most recent transitions of all blocks, for error reports.
#pragma once

#include <algorithm>
#include <vector>

#include "types.hpp"

namespace kvcache {

// A ring of fixed size.
class History {
 public:
  void record(Operation operation, HolderId actor, BlockId block) {
    ring_[serial_ % kKept] = {serial_ + 1, actor, block, operation};
    ++serial_;
  }

  std::uint64_t serial() const { return serial_; }

  // At most `kShown` transitions of one block, oldest first.
  std::vector<Transition> of(BlockId block) const {
    std::vector<Transition> found;
    const std::uint64_t first = serial_ > kKept ? serial_ - kKept : 0;
    for (std::uint64_t at = serial_; at > first && found.size() < kShown; --at) {
      const Transition& transition = ring_[(at - 1) % kKept];
      if (transition.block == block) found.push_back(transition);
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

 private:
  static constexpr std::size_t kShown = 16;
  static constexpr std::size_t kKept = 1 << 15;  // a constant, as every transition divides by it
  std::vector<Transition> ring_ = std::vector<Transition>(kKept);
  std::uint64_t serial_ = 0;
};

}  // namespace kvcache
