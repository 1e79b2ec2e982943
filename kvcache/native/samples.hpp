// How long blocks live, lie idle and wait for their next use: one block in 64 is watched.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "types.hpp"

namespace kvcache {

// Times are counted in releases of sequences.
struct Sample {
  enum class Kind : std::int64_t { kEvicted, kReused } kind;
  std::int64_t first;   // evicted: when it was published; reused: when it was released
  std::int64_t second;  // evicted: when it was released last; reused: 0
  std::int64_t now;
};

class Samples {
 public:
  explicit Samples(BlockId num_blocks) : born_(slots(num_blocks), kUnknown) {}

  static bool is_watched(BlockId block) { return block % kOneIn == 1; }

  void published(BlockId block, std::int64_t now) {
    if (is_watched(block)) born(block) = now;
  }

  void forget(BlockId block) {
    if (is_watched(block)) born(block) = kUnknown;
  }

  // What was published under another id is not told of.
  void evicted(BlockId block, std::int64_t released, std::int64_t now) {
    if (!is_watched(block)) return;
    const std::int64_t published = std::exchange(born(block), kUnknown);
    if (published != kUnknown) add({Sample::Kind::kEvicted, published, released, now});
  }

  void reused(BlockId block, std::int64_t released, std::int64_t now) {
    if (is_watched(block)) add({Sample::Kind::kReused, released, 0, now});
  }

  std::deque<Sample> drain() { return std::exchange(samples_, {}); }

  void reserve(BlockId num_blocks) { born_.reserve(slots(num_blocks)); }
  void resize(BlockId num_blocks) { born_.resize(slots(num_blocks), kUnknown); }

 private:
  static constexpr BlockId kOneIn = 64;
  static constexpr std::size_t kMost = 4096;  // the oldest go when nobody asks for them
  static constexpr std::int64_t kUnknown = -1;

  static std::size_t slots(BlockId num_blocks) { return static_cast<std::size_t>(num_blocks / kOneIn) + 1; }
  std::int64_t& born(BlockId block) { return born_[static_cast<std::size_t>(block / kOneIn)]; }

  void add(const Sample& sample) {
    if (samples_.size() == kMost) samples_.pop_front();
    samples_.push_back(sample);
  }

  std::vector<std::int64_t> born_;  // of the watched blocks
  std::deque<Sample> samples_;
};

}  // namespace kvcache
