// The free blocks: a set of small integers that gives its lowest member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.hpp"

namespace kvcache {

// A bitmap under summaries: a bit of level k + 1 says whether a word of level k has any bit set.
// Every operation touches one word a level: O(log64 n), 2 bits or less a block, and no worst
// case that depends on how the holes lie.
class FreeSet {
 public:
  explicit FreeSet(std::size_t capacity) : capacity_(capacity) {
    do {
      capacity = (capacity + 63) / 64;
      levels_.emplace_back(capacity, 0);
    } while (capacity > 1);
  }

  std::size_t size() const { return size_; }

  bool contains(BlockId id) const {
    return levels_[0][static_cast<std::size_t>(id) / 64] >> (id % 64) & 1;
  }

  // `id` is not a member.
  void insert(BlockId id) {
    auto at = static_cast<std::size_t>(id);
    for (auto& level : levels_) {
      std::uint64_t& word = level[at / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (at % 64);
      if (!was_empty) break;
      at /= 64;
    }
    ++size_;
  }

  // The set is not empty.
  BlockId lowest() const {
    std::size_t at = 0;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      at = at * 64 + static_cast<std::size_t>(__builtin_ctzll((*level)[at]));
    }
    return static_cast<BlockId>(at);
  }

  // `id` is a member.
  void remove(BlockId id) {
    auto at = static_cast<std::size_t>(id);
    for (auto& level : levels_) {
      std::uint64_t& word = level[at / 64];
      word &= ~(std::uint64_t{1} << (at % 64));
      if (word != 0) break;
      at /= 64;
    }
    --size_;
  }

  // The highest number below the capacity that is no member; 0 is none. A word a step from the
  // end, so that a million free blocks take some microseconds.
  BlockId highest_absent() const {
    const std::size_t last_bits = capacity_ % 64;
    for (std::size_t word = levels_[0].size(); word-- > 0;) {
      std::uint64_t absent = ~levels_[0][word];
      if (word == capacity_ / 64 && last_bits > 0) absent &= (std::uint64_t{1} << last_bits) - 1;
      if (absent != 0) return static_cast<BlockId>(word * 64 + 63 - static_cast<std::size_t>(__builtin_clzll(absent)));
    }
    return 0;
  }

 private:
  std::size_t capacity_;
  std::vector<std::vector<std::uint64_t>> levels_;  // the last one is a single word
  std::size_t size_ = 0;
};

}  // namespace kvcache
