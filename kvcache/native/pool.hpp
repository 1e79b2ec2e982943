// Who owns each block.
#pragma once

#include <array>
#include <numeric>
#include <string>
#include <unordered_map>

#include "free_set.hpp"
#include "groups.hpp"
#include "history.hpp"
#include "records.hpp"
#include "relocation.hpp"
#include "rings.hpp"
#include "samples.hpp"
#include "types.hpp"

namespace kvcache {

// A state machine over blocks with books that balance: states, groups and holders are counted as
// they change, and the free set by itself.
class Pool {
 public:
  // Fewer releases than the default until the clock is set back are for tests.
  Pool(BlockId num_blocks, EvictionRule rule, std::uint32_t horizon = EvictionRings::kHorizon)
      : records_(num_blocks), rings_(records_, rule, horizon), free_(static_cast<std::size_t>(num_blocks)), samples_(num_blocks) {
    for (BlockId block = 1; block < num_blocks; ++block) free_.insert(block);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  BlockId num_blocks() const { return records_.num_blocks(); }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t count(BlockState state) const { return counts_[static_cast<std::size_t>(state)]; }
  std::int64_t shared_blocks() const { return shared_; }
  BlockId highest_used() const { return free_.highest_absent(); }
  bool is_published(BlockId block) const { return records_.at(block).published; }
  int level(BlockId block) const { return level_of(records_.at(block).block_class); }
  int group(BlockId block) const { return group_of(records_.at(block).block_class); }
  bool is_reused(BlockId block) const { return records_.at(block).reused; }

  Groups& groups() { return groups_; }
  const Groups& groups() const { return groups_; }
  EvictionRings& rings() { return rings_; }
  const EvictionRings& rings() const { return rings_; }
  Samples& samples() { return samples_; }

  BlockState state(BlockId block) const {
    const Record& record = records_.at(block);
    if (record.is_cached()) return BlockState::kCached;
    if (record.sequences() > 0) return BlockState::kHeld;
    if (!record.has_others()) return block == kNullBlock ? BlockState::kNull : BlockState::kFree;
    const Others& others = others_.at(block);
    if (others[HolderKind::kLoad] > 0 && !record.published) return BlockState::kLoading;
    if (others[HolderKind::kStore] > 0) return BlockState::kStoring;
    if (others[HolderKind::kPin] + others[HolderKind::kLoad] > 0) return BlockState::kPinned;
    return BlockState::kExpected;
  }

  // Whether nobody needs the block: taking it takes one from those that are available.
  bool is_idle(BlockId block) const {
    const BlockState now = state(block);
    return now == BlockState::kCached || now == BlockState::kExpected;
  }

  std::int64_t holders(BlockId block, HolderKind kind) const {
    const Record& record = records_.at(block);
    if (kind == HolderKind::kSequence) return record.sequences();
    return record.has_others() ? others_.at(block)[kind] : 0;
  }

  std::int64_t holders(BlockId block) const {
    const Record& record = records_.at(block);
    return record.sequences() + (record.has_others() ? others_.at(block).total() : 0);
  }

  // A block was hit when no sequence held it.
  void mark_reused(BlockId block) { records_.at(block).reused = rings_.can_be_reused(); }

  // FREE -> what the kind of its holder makes it: the lowest free block.
  BlockId allocate(HolderId holder, HolderKind kind, BlockClass block_class) {
    if (free_.size() == 0) throw OutOfBlocksError(1, 0);
    const BlockId block = free_.lowest();
    change_holders(block, kind, +1);
    free_.remove(block);
    records_.at(block).block_class = block_class;
    moved(block, BlockState::kFree);
    history_.record(Operation::kAllocate, holder, block);
    return block;
  }

  // One more holder of a block that somebody holds or the index has. Its level rises to the
  // holder's.
  void hold(BlockId block, HolderId holder, HolderKind kind, int level) {
    const BlockState before = state(block);
    if (before == BlockState::kFree || before == BlockState::kNull || before == BlockState::kLoading) refuse(Operation::kHold, holder, block, "its state forbids that");
    if (before == BlockState::kCached) {
      if (kind == HolderKind::kSequence) samples_.reused(block, rings_.released_at(block), rings_.now());
      rings_.remove(block);
    }
    change_holders(block, kind, +1);
    if (holders(block) == 2) ++shared_;
    Record& record = records_.at(block);
    if (level_of(record.block_class) < level) record.block_class = static_cast<BlockClass>(record.block_class - level_of(record.block_class) + level);
    moved(block, before);
    history_.record(Operation::kHold, holder, block);
  }

  // One holder less. After the last one the block is CACHED if the index has it, else FREE.
  void release(BlockId block, HolderId holder, HolderKind kind) {
    const BlockState before = state(block);
    if (holders(block, kind) == 0) refuse(Operation::kRelease, holder, block, "its state forbids that");
    change_holders(block, kind, -1);
    const std::int64_t left = holders(block);
    if (left == 1) --shared_;
    if (left == 0) let_go(block);
    moved(block, before);
    history_.record(Operation::kRelease, holder, block);
  }

  // The index adopts a block that somebody holds.
  void publish(BlockId block, HolderId actor) {
    const BlockState before = state(block);
    if (holders(block) == 0) refuse(Operation::kPublish, actor, block, "its state forbids that");
    Record& record = records_.at(block);
    if (record.published) refuse(Operation::kPublish, actor, block, "is in the index already");
    record.published = true;
    samples_.published(block, rings_.now());
    moved(block, before);
    history_.record(Operation::kPublish, actor, block);
  }

  // The index lets go: CACHED -> FREE; a block that is held stays with its holders.
  void unpublish(BlockId block, HolderId actor) {
    const BlockState before = state(block);
    Record& record = records_.at(block);
    if (!record.published) refuse(Operation::kUnpublish, actor, block, "is not in the index");
    if (before == BlockState::kCached) {
      if (actor == kEviction) samples_.evicted(block, rings_.released_at(block), rings_.now());
      rings_.remove(block);
      free_.insert(block);
    }
    record.published = record.reused = false;
    samples_.forget(block);
    moved(block, before);
    history_.record(Operation::kUnpublish, actor, block);
  }

  // The blocks at `num_blocks` and beyond go to the lowest free ids. There are enough.
  Relocation plan_shrink(BlockId num_blocks) const {
    Relocation plan(num_blocks, this->num_blocks());
    FreeSet left = free_;
    for (BlockId block = num_blocks; block < this->num_blocks(); ++block) {
      if (free_.contains(block)) continue;
      plan.add(block, left.lowest());
      left.remove(left.lowest());
    }
    return plan;
  }

  // Has memory for so many blocks; then `resize` does not fail.
  FreeSet prepare_resize(BlockId num_blocks) {
    records_.reserve(num_blocks);
    samples_.reserve(num_blocks);
    return FreeSet(static_cast<std::size_t>(num_blocks));
  }

  // `free` is empty and large enough, by `prepare_resize`.
  void resize(BlockId num_blocks, const Relocation& plan, FreeSet free) {
    for (const auto& [source, destination] : plan.moves()) {
      records_.move(source, destination);
      if (auto others = others_.extract(source)) {
        others.key() = destination;
        others_.insert(std::move(others));
      }
      samples_.forget(source);
      samples_.forget(destination);
    }
    records_.resize(num_blocks);
    samples_.resize(num_blocks);
    free_ = std::move(free);
    for (BlockId block = 1; block < num_blocks; ++block) {
      if (state(block) == BlockState::kFree) free_.insert(block);
    }
  }

  // Conservation, O(1). The size of the free set is kept by the set, apart from the counters.
  void check() const {
    const std::int64_t owned = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
    if (free_blocks() + owned != num_blocks() - 1 || *std::min_element(counts_.begin(), counts_.end()) < 0) {
      throw ConservationError(std::to_string(free_blocks()) + " free and " + std::to_string(owned) + " owned blocks are not " +
                              std::to_string(num_blocks() - 1));
    }
  }

  // Counters, free set and rings against the records, O(num_blocks).
  void audit() const {
    check();
    std::array<std::int64_t, kBlockStates> counts{};
    Groups charged;
    std::int64_t shared = 0;
    std::size_t with_others = 0;
    for (BlockId block = 1; block < num_blocks(); ++block) {
      const Record& record = records_.at(block);
      const BlockState now = state(block);
      if (free_.contains(block) != (now == BlockState::kFree) || (now == BlockState::kFree && (record.published || record.reused))) {
        throw ConservationError("block " + std::to_string(block) + " is free, or is not, against its record");
      }
      shared += holders(block) > 1;
      with_others += record.has_others();
      charged.count(group(block), now, +1);
      if (now != BlockState::kFree) ++counts[static_cast<std::size_t>(now)];
    }
    if (counts != counts_ || shared != shared_) throw ConservationError("a counter of the pool is wrong");
    for (int at = 0; at < kGroups; ++at) {
      const Groups::Group &found = charged.at(at), &books = groups_.at(at);
      if (found.in_use != books.in_use || found.cached != books.cached || found.expected != books.expected) {
        throw ConservationError("group " + std::to_string(at) + " is charged with what it has not");
      }
    }
    for (const auto& [block, others] : others_) with_others -= records_.at(block).has_others() && others.total() > 0;
    if (with_others != 0) throw ConservationError("the holders beside sequences are noted for the wrong blocks");
    if (rings_.audit() != count(BlockState::kCached)) throw ConservationError("the eviction rings miss a block");
  }

 private:
  // Holders of a block beside sequences, by kind.
  struct Others {
    std::array<std::uint32_t, kHolderKinds> counts{};
    std::uint32_t& operator[](HolderKind kind) { return counts[static_cast<std::size_t>(kind)]; }
    std::uint32_t operator[](HolderKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
    std::int64_t total() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  };

  // The block is not in a ring.
  void change_holders(BlockId block, HolderKind kind, int change) {
    Record& record = records_.at(block);
    if (kind == HolderKind::kSequence) {
      record.older += change;
      return;
    }
    const auto entry = others_.try_emplace(block).first;
    entry->second[kind] += static_cast<std::uint32_t>(change);
    record.newer = Record::kWithOthers;
    if (entry->second.total() == 0) {
      others_.erase(entry);
      record.newer = Record::kAlone;
    }
  }

  void let_go(BlockId block) {
    if (records_.at(block).published) {
      rings_.append(block);
    } else {
      free_.insert(block);
    }
  }

  // The block may have left the state `before`: books are kept of where it is now.
  void moved(BlockId block, BlockState before) {
    const BlockState now = state(block);
    if (now == before) return;
    if (before != BlockState::kFree) --counts_[static_cast<std::size_t>(before)];
    if (now != BlockState::kFree) ++counts_[static_cast<std::size_t>(now)];
    groups_.count(group(block), before, -1);
    groups_.count(group(block), now, +1);
  }

  [[noreturn]] void refuse(Operation operation, HolderId actor, BlockId block, const char* reason) const {
    throw IllegalTransitionError(state(block), reason, {history_.serial() + 1, actor, block, operation}, history_.of(block));
  }

  Records records_;
  EvictionRings rings_;
  std::unordered_map<BlockId, Others> others_;
  FreeSet free_;
  Groups groups_;
  Samples samples_;
  History history_;
  std::array<std::int64_t, kBlockStates> counts_{};  // all but the FREE ones
  std::int64_t shared_ = 0;                          // blocks with two holders or more
};

}  // namespace kvcache
