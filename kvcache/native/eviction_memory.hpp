// What was evicted not long ago, to count what is asked for again.
#pragma once

#include <utility>
#include <vector>

#include "digest.hpp"
#include "types.hpp"

namespace kvcache {

// Remembers the last `capacity` .. 2 x `capacity` evicted blocks by their digests. Two generations
// of a set instead of a queue: forgetting is a swap.
class EvictionMemory {
 public:
  explicit EvictionMemory(std::size_t capacity) : capacity_(capacity), young_(slots()), old_(slots()) {}

  bool is_empty() const { return young_size_ == 0 && old_is_empty_; }

  bool contains(Digest digest) const {
    return young_[find(young_, digest)] != 0 || old_[find(old_, digest)] != 0;
  }

  void remember(Digest digest) {
    if (young_size_ >= capacity_) {
      std::swap(young_, old_);
      young_.assign(slots(), 0);
      young_size_ = 0;
      old_is_empty_ = false;
    }
    Digest& slot = young_[find(young_, digest)];
    young_size_ += slot == 0;
    slot = stored(digest);
  }

 private:
  std::size_t slots() const { return capacity_ + capacity_ / 4 + 1; }  // never full

  static Digest stored(Digest digest) { return digest == 0 ? 1 : digest; }  // 0 marks an empty slot

  // The slot that holds the digest, or else the empty one where it belongs.
  static std::size_t find(const std::vector<Digest>& slots, Digest digest) {
    std::size_t at = slot_of(digest, slots.size());
    while (slots[at] != 0 && slots[at] != stored(digest)) at = at + 1 == slots.size() ? 0 : at + 1;
    return at;
  }

  std::size_t capacity_;
  std::vector<Digest> young_, old_;
  std::size_t young_size_ = 0;
  bool old_is_empty_ = true;
};

}  // namespace kvcache
