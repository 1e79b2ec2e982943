// In which order the cached blocks are given up.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "records.hpp"
#include "types.hpp"

namespace kvcache {

// How ring fronts are chosen between, see kvcache.core. A weight of 0 is plain LRU: then no block
// counts as reused.
struct EvictionRule {
  std::uint32_t reuse_weight;     // a reused block counts as idle for one part in so many of the time
  std::int64_t protected_blocks;  // not taken from the reused ones while others abound
};

// The cached blocks of a class form two rings, of those used once and of those reused, least
// recently released first. Time is counted in releases of sequences: an idle night changes nothing.
//
// The victim is always a leaf: no search, no heap, no set of leaves. Whoever holds a block holds
// those before it, and lets go from the tail up. So of a cached parent and child both are of one
// group; the parent is of no lower level, was released no earlier, and was reused if the child was;
// and as a higher level is given no more time, the child has outlived its own if the parent has. So
// where the parent stands at the front of a ring and is of the lowest rank, so is the front of the
// child's ring, which is idle for at least as long. Is that a ring of the same use, it is
// preferred: by its idle time, or its lower class, or as the same ring. Else the parent is reused
// and the child is not, and the reused one would have to be idle for longer.
class EvictionRings {
 public:
  static constexpr std::uint32_t kHorizon = std::uint32_t{1} << Record::kReleasedBits;

  // `horizon`: releases after which the clock of the records is set back.
  EvictionRings(Records& records, EvictionRule rule, std::uint32_t horizon)
      : records_(records), rule_(rule), horizon_(horizon) {
    expiry_.fill(-1);
  }

  // --- time ---

  std::int64_t now() const { return base_ + clock_; }

  // When a CACHED block was released.
  std::int64_t released_at(BlockId block) const { return base_ + records_.at(block).released; }

  // A sequence lets go of its blocks.
  void tick() {
    if (++clock_ == horizon_) set_back();
  }

  // Blocks of the level that were released then or before have outlived its time.
  void set_expiry(int level, std::int64_t tick) { expiry_[static_cast<std::size_t>(level)] = tick; }
  std::int64_t expiry(int level) const { return expiry_[static_cast<std::size_t>(level)]; }

  // --- changing ---

  bool can_be_reused() const { return rule_.reuse_weight > 0; }

  // An unlinked block becomes the most recently released of its ring.
  void append(BlockId block) {
    Record& record = records_.at(block);
    const BlockId ring = Records::ring(record.block_class, record.reused);
    record.released = clock_ & (kHorizon - 1);  // the mask is for the compiler
    record.older = records_.at(ring).older;
    record.newer = ring;
    records_.at(record.older).newer = block;
    records_.at(ring).older = block;
    Sizes& sizes = sizes_[record.block_class];
    ++(record.reused ? sizes.reused : sizes.once);
    in_use_[record.block_class / 64] |= std::uint64_t{1} << (record.block_class % 64);
  }

  // A linked block leaves; it then has no holder.
  void remove(BlockId block) {
    Record& record = records_.at(block);
    records_.at(record.older).newer = record.newer;
    records_.at(record.newer).older = record.older;
    record.older = 0;
    record.newer = Record::kAlone;
    Sizes& sizes = sizes_[record.block_class];
    --(record.reused ? sizes.reused : sizes.once);
    if (sizes.once + sizes.reused == 0) in_use_[record.block_class / 64] &= ~(std::uint64_t{1} << (record.block_class % 64));
  }

  // --- reading ---

  // The block to evict next among those of `groups` (a bit each); the null block if there is
  // none. O(classes that have cached blocks).
  BlockId victim(std::uint32_t groups) const {
    Fronts lowest;
    each_class([&](BlockClass block_class) {
      if (groups >> group_of(block_class) & 1) look_at(lowest, block_class);
    });
    const BlockId once = lowest.once.block, reused = lowest.reused.block;
    if (once == kNullBlock || reused == kNullBlock) return std::max(once, reused);
    if (idle(reused) <= std::uint64_t{rule_.reuse_weight} * idle(once)) return once;
    return lowest.reused.blocks > std::min(rule_.protected_blocks, lowest.once.blocks) ? reused : once;
  }

  // Calls `visit` for every cached block: by class, those used once first, in each ring the
  // oldest first.
  template <typename Visit>
  void each(Visit visit) const {
    each_class([&](BlockClass block_class) {
      for (const bool reused : {false, true}) {
        const BlockId ring = Records::ring(block_class, reused);
        for (BlockId block = records_.at(ring).newer; block != ring; block = records_.at(block).newer) visit(block);
      }
    });
  }

  // Links and counts, O(cached blocks). Answers how many there are.
  std::int64_t audit() const {
    std::int64_t linked = 0;
    std::array<Sizes, kClasses> sizes{};
    each([&](BlockId block) {
      const Record& record = records_.at(block);
      if (!record.is_cached() || !record.published || records_.at(record.newer).older != block || ++linked > records_.num_blocks()) {
        throw ConservationError("an eviction ring is broken at block " + std::to_string(block));
      }
      Sizes& counted = sizes[record.block_class];
      ++(record.reused ? counted.reused : counted.once);
    });
    for (std::size_t at = 0; at < kClasses; ++at) {
      if (sizes[at].once != sizes_[at].once || sizes[at].reused != sizes_[at].reused) {
        throw ConservationError("the cached blocks of a class are miscounted");
      }
    }
    return linked;
  }

 private:
  struct Sizes {
    std::uint32_t once = 0;
    std::uint32_t reused = 0;
  };

  // Of several rings: the front that is idle longest, and the blocks in all of them.
  struct Front {
    BlockId block = kNullBlock;
    std::int64_t blocks = 0;
  };

  // Of the rings of the lowest rank seen so far, by use.
  struct Fronts {
    int rank = kLevels;
    Front once, reused;
  };

  template <typename Visit>
  void each_class(Visit visit) const {
    for (std::size_t word = 0; word < in_use_.size(); ++word) {
      for (std::uint64_t left = in_use_[word]; left != 0; left &= left - 1) {
        visit(static_cast<BlockClass>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(left))));
      }
    }
  }

  std::uint64_t idle(BlockId block) const { return clock_ - records_.at(block).released; }

  void look_at(Fronts& lowest, BlockClass block_class) const {
    const int level = level_of(block_class);
    for (const bool reused : {false, true}) {
      const BlockId front = records_.at(Records::ring(block_class, reused)).newer;
      if (front < 0) continue;
      const int rank = level > 0 && released_at(front) <= expiry_[static_cast<std::size_t>(level)] ? 0 : level;
      if (rank > lowest.rank) continue;
      if (rank < lowest.rank) lowest = {rank, {}, {}};
      Front& best = reused ? lowest.reused : lowest.once;
      if (best.block == kNullBlock || idle(front) > idle(best.block)) best.block = front;
      best.blocks += reused ? sizes_[block_class].reused : sizes_[block_class].once;
    }
  }

  // Sets the clock back before it overflows. Of two blocks idle for very long it is forgotten
  // which is idle longer, and when they were released; their order in a ring stays.
  void set_back() {
    const std::uint32_t longest = horizon_ / 2;
    each([&](BlockId block) {
      Record& record = records_.at(block);
      record.released = (longest - std::min<std::uint32_t>(longest, clock_ - record.released)) & (kHorizon - 1);
    });
    base_ += clock_ - longest;
    clock_ = longest;
  }

  Records& records_;
  EvictionRule rule_;
  std::uint32_t horizon_;
  std::uint32_t clock_ = 0;  // releases of sequences since base_
  std::int64_t base_ = 0;
  std::array<std::int64_t, kLevels> expiry_;  // by level, see set_expiry
  std::array<Sizes, kClasses> sizes_{};
  std::array<std::uint64_t, kClasses / 64> in_use_{};  // a bit for each class that has cached blocks
};

}  // namespace kvcache
