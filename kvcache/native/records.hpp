// What is kept of every block: twelve bytes.
#pragma once

#include <limits>
#include <vector>

#include "types.hpp"

namespace kvcache {

// A CACHED block is linked into the ring of its class and use; its two links are then the ids of
// its neighbours. Otherwise `older` counts the sequences that hold it and `newer` says whether
// holders of other kinds are noted elsewhere.
struct Record {
  static constexpr int kReleasedBits = 22;

  BlockId older = 0;
  BlockId newer = kAlone;
  std::uint32_t released : kReleasedBits;  // while CACHED: time since when
  std::uint32_t published : 1;             // is in the index
  std::uint32_t reused : 1;                // was hit when no sequence held it
  std::uint32_t block_class : 8;

  Record() : released(0), published(0), reused(0), block_class(0) {}

  bool is_cached() const { return newer > kWithOthers; }
  bool has_others() const { return newer == kWithOthers; }
  BlockId sequences() const { return is_cached() ? 0 : older; }

  static constexpr BlockId kAlone = std::numeric_limits<BlockId>::min();
  static constexpr BlockId kWithOthers = kAlone + 1;
};
static_assert(sizeof(Record) == 12, "memory is counted by the block");

// The records by block id. The ends of the rings have negative ids and stand before them, so
// that links need no case and a resize moves no ring.
class Records {
 public:
  static constexpr int kRings = 2 * kClasses;

  explicit Records(BlockId num_blocks) : records_(static_cast<std::size_t>(num_blocks) + kRings) {
    for (BlockId ring = -kRings; ring < 0; ++ring) at(ring).older = at(ring).newer = ring;
  }

  // The end of a ring.
  static BlockId ring(BlockClass block_class, bool reused) { return -1 - (2 * block_class + reused); }

  BlockId num_blocks() const { return static_cast<BlockId>(records_.size()) - kRings; }
  Record& at(BlockId id) { return records_[static_cast<std::size_t>(id + kRings)]; }
  const Record& at(BlockId id) const { return records_[static_cast<std::size_t>(id + kRings)]; }

  void reserve(BlockId num_blocks) { records_.reserve(static_cast<std::size_t>(num_blocks) + kRings); }

  // Blocks beyond `num_blocks` are FREE.
  void resize(BlockId num_blocks) {
    records_.resize(static_cast<std::size_t>(num_blocks) + kRings);
    records_.shrink_to_fit();
  }

  // `destination` is FREE; then `source` is.
  void move(BlockId source, BlockId destination) {
    Record& from = at(source);
    if (from.is_cached()) at(from.older).newer = at(from.newer).older = destination;
    at(destination) = std::exchange(from, Record());
  }

 private:
  std::vector<Record> records_;
};

}  // namespace kvcache
