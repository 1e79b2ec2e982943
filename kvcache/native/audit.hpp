// Pool, index and holders against each other, O(everything).
#pragma once

#include <array>

#include "core.hpp"

namespace kvcache {

inline void Core::audit() const {
  pool_.audit();
  BlockHolders holders(static_cast<std::size_t>(pool_.num_blocks()));
  std::vector<std::int64_t> root_users;
  std::int64_t reserved = 0, slack = 0, sequences = 0;
  std::size_t pending = 0;
  for (const auto& [id, holder] : holders_) {
    audit_holder(holder);
    for (const BlockId block : holder.table) ++holders[static_cast<std::size_t>(block)][static_cast<std::size_t>(holder.kind)];
    const auto root = static_cast<std::size_t>(holder.root);
    if (root_users.size() <= root) root_users.resize(root + 1);
    ++root_users[root];
    pending += holder.is_pending;
    if (!holder.is_sequence()) continue;
    const std::size_t written = (holder.computed_tokens + block_tokens_ - 1) / block_tokens_;
    reserved += static_cast<std::int64_t>(holder.table.size() - written);
    slack += static_cast<std::int64_t>(holder.table.size() * block_tokens_ - holder.tokens.size());
    ++sequences;
  }
  if (reserved != reserved_ || slack != slack_ || sequences != live_sequences_) {
    throw ConservationError("the sums over the sequences are wrong");
  }
  if (pending != pending_.size()) throw ConservationError("the pending prefixes are not those of the holders in prefill");
  index_.audit(std::move(root_users));
  audit_blocks(holders);
  audit_eviction();
}

inline void Core::audit_holder(const Holder& holder) const {
  const std::string name = "sequence " + std::to_string(holder.id);
  const std::size_t needed = (holder.tokens.size() + block_tokens_ - 1) / block_tokens_;
  if (holder.table.size() != needed) throw ConservationError(name + " has blocks that do not fit its tokens");
  std::vector<BlockId> sorted = holder.table;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw ConservationError(name + " has a block twice");
  if (holder.is_pending != (holder.is_prefilling() && holder.prompt_tokens >= block_tokens_)) {
    throw ConservationError(name + " is pending against its state");
  }
  for (const BlockId block : holder.table) {
    if (pool_.group(block) != group_of(holder.block_class) || pool_.level(block) < level_of(holder.block_class)) {
      throw ConservationError("block " + std::to_string(block) + " is not of the class of " + name);
    }
  }
  if (!holder.is_indexed) return;
  for (std::size_t number = 0; number < holder.published_blocks; ++number) {
    const Parent parent = number == 0 ? as_parent(holder.root) : holder.table[number - 1];
    if (!index_.is(holder.table[number], parent, holder.tokens.data() + number * block_tokens_)) {
      throw ConservationError("the path of " + name + " is not its own");
    }
  }
}

// `holders` are those of every block, counted by kind.
inline void Core::audit_blocks(const BlockHolders& holders) const {
  for (BlockId block = 1; block < pool_.num_blocks(); ++block) {
    const std::string name = "block " + std::to_string(block);
    for (int kind = 0; kind < kHolderKinds; ++kind) {
      const std::int64_t counted = holders[static_cast<std::size_t>(block)][static_cast<std::size_t>(kind)];
      if (pool_.holders(block, static_cast<HolderKind>(kind)) != counted) {
        throw ConservationError(name + " is not held by those who hold it");
      }
    }
    if (pool_.is_published(block) != index_.contains(block)) throw ConservationError("pool and index disagree on " + name);
    if (!index_.contains(block) || is_root(index_.parent(block))) continue;
    const BlockId parent = index_.parent(block);
    if (pool_.holders(parent) < pool_.holders(block)) throw ConservationError(name + " has more holders than the one before it");
    if (pool_.group(parent) != pool_.group(block) || pool_.level(parent) < pool_.level(block)) {
      throw ConservationError(name + " is of a higher level than the one before it, or of another group");
    }
    if (pool_.is_reused(block) && !pool_.is_reused(parent)) throw ConservationError(name + " was reused without the one before it");
  }
}

// Of two cached blocks the one that continues the other was released no later, and stands before
// it in a ring; and no victim is continued, whoever needs a block.
inline void Core::audit_eviction() const {
  const EvictionRings& rings = pool_.rings();
  std::vector<std::size_t> place(static_cast<std::size_t>(pool_.num_blocks()));
  std::size_t next = 0;
  rings.each([&](BlockId block) { place[static_cast<std::size_t>(block)] = ++next; });
  std::vector<bool> is_continued(place.size());
  for (BlockId block = 1; block < pool_.num_blocks(); ++block) {
    if (!index_.contains(block) || is_root(index_.parent(block))) continue;
    const BlockId parent = index_.parent(block);
    is_continued[static_cast<std::size_t>(parent)] = true;
    if (pool_.state(parent) != BlockState::kCached) continue;
    const bool share_ring = pool_.level(parent) == pool_.level(block) && pool_.is_reused(parent) == pool_.is_reused(block);
    if (rings.released_at(parent) < rings.released_at(block) ||
        (share_ring && place[static_cast<std::size_t>(parent)] < place[static_cast<std::size_t>(block)])) {
      throw ConservationError("block " + std::to_string(block) + " would be evicted after the one before it");
    }
  }
  for (int group = -1; group < kGroups; ++group) {
    const std::uint32_t groups = group < 0 ? kEveryGroup : std::uint32_t{1} << group;
    for (const std::uint32_t eligible : {groups, group < 0 ? groups : pool_.groups().evictable_for(group)}) {
      const BlockId victim = rings.victim(eligible);
      if (is_continued[static_cast<std::size_t>(victim)]) {
        throw ConservationError("block " + std::to_string(victim) + " would be evicted before what continues it");
      }
    }
  }
}

}  // namespace kvcache
