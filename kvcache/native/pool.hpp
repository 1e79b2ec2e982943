// Who owns each block, and in which order the unowned ones are given up.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "free_set.hpp"
#include "types.hpp"

namespace kvcache {

// The most recent transitions of all blocks, for error reports; a ring of fixed size.
class History {
 public:
  void record(Operation operation, SequenceId actor, BlockId block) {
    ring_[serial_ % ring_.size()] = {serial_ + 1, actor, block, operation};
    ++serial_;
  }

  std::uint64_t serial() const { return serial_; }

  // At most `kShown` transitions of one block, oldest first.
  std::vector<Transition> of(BlockId block) const {
    std::vector<Transition> found;
    const std::uint64_t first = serial_ > ring_.size() ? serial_ - ring_.size() : 0;
    for (std::uint64_t at = serial_; at > first && found.size() < kShown; --at) {
      const Transition& transition = ring_[(at - 1) % ring_.size()];
      if (transition.block == block) found.push_back(transition);
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

 private:
  static constexpr std::size_t kShown = 16;
  std::vector<Transition> ring_ = std::vector<Transition>(1 << 15);
  std::uint64_t serial_ = 0;
};

// How ReuseAwarePolicy of kvcache.eviction chooses between the two rings. A weight of 0 is plain
// LRU: then no block counts as reused.
struct EvictionRule {
  std::uint32_t reuse_weight;     // a reused block counts as idle for one part in so many of the time
  std::int64_t protected_blocks;  // not taken from the reused ones while others abound
};

// A block is FREE, HELD (by one sequence or more) or CACHED (in the index, held by nobody). The
// cached ones form two rings, of those used once and of those reused, least recently released
// first. Whoever releases a path does so from its tail, and whoever holds a block holds those
// before it; so in a ring a block always stands behind all that continue it, and the victim is a
// leaf: no search, no heap, no set of leaves.
class Pool {
 public:
  Pool(BlockId num_blocks, EvictionRule rule)
      : num_blocks_(num_blocks), rule_(rule), records_(static_cast<std::size_t>(num_blocks) + 1), free_(records_.size()) {
    for (BlockId block = 1; block < num_blocks; ++block) free_.insert(block);
    for (const BlockId ring : {kNullBlock, reused_ring()}) at(ring).older = at(ring).newer = ring;
  }

  BlockId num_blocks() const { return num_blocks_; }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t cached_blocks() const { return cached_; }
  std::int64_t held_blocks() const { return held_; }
  std::int64_t shared_blocks() const { return shared_; }
  std::uint32_t holders(BlockId block) const { return holders(at(block)); }
  bool is_published(BlockId block) const { return at(block).published; }

  // The cached block to evict next; the null block if there is none.
  BlockId victim() const {
    const BlockId once = at(kNullBlock).newer, reused = at(reused_ring()).newer;
    if (reused == reused_ring()) return once;
    if (once == kNullBlock) return reused;
    if (idle(reused) <= std::uint64_t{rule_.reuse_weight} * idle(once)) return once;
    const std::int64_t used_once = cached_ - reused_;
    return reused_ > std::min(rule_.protected_blocks, used_once) ? reused : once;
  }

  // A sequence lets go of its blocks: the unit of time for evictions.
  void tick() {
    if (++now_ == kHorizon) shorten_idle_times();
  }

  // A HELD block was hit when nobody held it.
  void mark_reused(BlockId block) { at(block).reused = rule_.reuse_weight > 0; }

  // FREE -> HELD: the lowest free block.
  BlockId allocate(SequenceId holder) {
    if (free_.size() == 0) throw OutOfBlocksError(1, 0);
    const BlockId block = free_.pop_lowest();
    at(block).is_held = true;
    at(block).holders_or_release = 1;
    ++held_;
    history_.record(Operation::kAllocate, holder, block);
    return block;
  }

  // One more holder; CACHED -> HELD.
  void hold(BlockId block, SequenceId holder) {
    Record& record = at(block);
    if (!record.is_held) {
      if (!record.published) refuse(Operation::kHold, holder, block, "its state forbids that");
      unlink(record);
      record.is_held = true;
      record.holders_or_release = 0;
      ++held_;
    }
    if (++record.holders_or_release == 2) ++shared_;
    history_.record(Operation::kHold, holder, block);
  }

  // One holder less. The last one: HELD -> CACHED if the index has the block, else FREE.
  void release(BlockId block, SequenceId holder) {
    Record& record = at(block);
    if (!record.is_held) refuse(Operation::kRelease, holder, block, "its state forbids that");
    if (record.holders_or_release-- == 2) --shared_;
    if (record.holders_or_release == 0) {
      record.is_held = false;
      --held_;
      if (record.published) {
        append(block);
      } else {
        free_.insert(block);
      }
    }
    history_.record(Operation::kRelease, holder, block);
  }

  // The index adopts a HELD block.
  void publish(BlockId block, SequenceId actor) {
    Record& record = at(block);
    if (!record.is_held) refuse(Operation::kPublish, actor, block, "its state forbids that");
    if (record.published) refuse(Operation::kPublish, actor, block, "is in the index already");
    record.published = true;
    history_.record(Operation::kPublish, actor, block);
  }

  // The index lets go: CACHED -> FREE; a HELD block stays with its holders.
  void unpublish(BlockId block, SequenceId actor) {
    Record& record = at(block);
    if (!record.published) refuse(Operation::kUnpublish, actor, block, "is not in the index");
    if (!record.is_held) {
      unlink(record);
      free_.insert(block);
    }
    record.published = record.reused = false;
    history_.record(Operation::kUnpublish, actor, block);
  }

  // Conservation, O(1). The size of the free set is kept by the set, apart from the counters.
  void check() const {
    if (free_blocks() + cached_ + held_ != num_blocks() - 1 || cached_ < 0 || held_ < 0) {
      throw ConservationError(std::to_string(free_blocks()) + " free, " + std::to_string(cached_) +
                              " cached and " + std::to_string(held_) + " held blocks are not " +
                              std::to_string(num_blocks() - 1));
    }
  }

  // Counters, free set and ring against the records, O(num_blocks).
  void audit() const {
    check();
    std::int64_t cached = 0, reused = 0, held = 0, shared = 0;
    for (BlockId block = 1; block < num_blocks_; ++block) {
      const Record& record = at(block);
      if (record.is_held && record.holders_or_release == 0) {
        throw ConservationError("block " + std::to_string(block) + " is HELD without a holder");
      }
      if (free_.contains(block) != (!record.is_held && !record.published)) {
        throw ConservationError("block " + std::to_string(block) + " is free, or is not, against its record");
      }
      held += record.is_held;
      shared += holders(record) > 1;
      cached += !record.is_held && record.published;
      reused += !record.is_held && record.reused;
    }
    if (cached != cached_ || reused != reused_ || held != held_ || shared != shared_) {
      throw ConservationError("a counter of the pool is wrong");
    }
    std::int64_t linked = 0;
    each_cached([&](BlockId block) {
      const Record& record = at(block);
      if (record.is_held || !record.published || at(record.newer).older != block || ++linked > cached) {
        throw ConservationError("an eviction ring is broken at block " + std::to_string(block));
      }
    });
    if (linked != cached) throw ConservationError("the eviction rings miss a block");
  }

  // Calls `visit` for every cached block, those used once first, in each ring the oldest first.
  template <typename Visit>
  void each_cached(Visit visit) const {
    for (const BlockId ring : {kNullBlock, reused_ring()}) {
      for (BlockId block = at(ring).newer; block != ring; block = at(block).newer) visit(block);
    }
  }

 private:
  static constexpr std::uint32_t kHorizon = 1u << 29;  // releases

  // Also the ends of a ring: the null block's, and one behind the last block's.
  struct Record {
    BlockId older = kNullBlock;  // neighbours in the ring, while cached
    BlockId newer = kNullBlock;
    std::uint32_t holders_or_release : 29;  // number of holders; while cached, time of the last release
    bool is_held : 1;
    bool published : 1;
    bool reused : 1;
    Record() : holders_or_release(0), is_held(false), published(false), reused(false) {}
  };
  static_assert(sizeof(Record) == 12, "memory is counted by the block");

  static std::uint32_t holders(const Record& record) { return record.is_held ? record.holders_or_release : 0; }
  BlockId reused_ring() const { return num_blocks_; }
  std::uint32_t idle(BlockId block) const { return now_ - at(block).holders_or_release; }

  Record& at(BlockId block) { return records_[static_cast<std::size_t>(block)]; }
  const Record& at(BlockId block) const { return records_[static_cast<std::size_t>(block)]; }

  void append(BlockId block) {
    Record& record = at(block);
    const BlockId ring = record.reused ? reused_ring() : kNullBlock;
    record.holders_or_release = now_ & (kHorizon - 1);  // the mask is for the compiler
    record.older = at(ring).older;
    record.newer = ring;
    at(record.older).newer = block;
    at(ring).older = block;
    ++cached_;
    reused_ += record.reused;
  }

  void unlink(const Record& record) {
    at(record.older).newer = record.newer;
    at(record.newer).older = record.older;
    --cached_;
    reused_ -= record.reused;
  }

  // Moves the clock back before it overflows. Of two blocks idle for very long it is forgotten
  // which is idle longer; their order in a ring stays.
  void shorten_idle_times() {
    constexpr std::uint32_t longest = kHorizon / 4;
    each_cached([&](BlockId block) {
      at(block).holders_or_release = (longest - std::min(longest, idle(block))) & (kHorizon - 1);
    });
    now_ = longest;
  }

  [[noreturn]] void refuse(Operation operation, SequenceId actor, BlockId block, const char* reason) const {
    const char* state = free_.contains(block)  ? "FREE"
                        : block == kNullBlock  ? "NULL"
                        : at(block).is_held    ? "HELD"
                                               : "CACHED";
    throw IllegalTransitionError(state, reason, {history_.serial() + 1, actor, block, operation}, history_.of(block));
  }

  BlockId num_blocks_;
  EvictionRule rule_;
  std::vector<Record> records_;
  FreeSet free_;
  History history_;
  std::uint32_t now_ = 0;  // in releases of sequences
  std::int64_t cached_ = 0;
  std::int64_t reused_ = 0;  // of the cached ones
  std::int64_t held_ = 0;
  std::int64_t shared_ = 0;
};

}  // namespace kvcache
