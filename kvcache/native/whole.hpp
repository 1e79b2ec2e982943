// What is done to all blocks, or all of a namespace, at once.
#pragma once

#include "core.hpp"

namespace kvcache {

inline std::vector<std::pair<BlockId, BlockId>> Core::resize(BlockId num_blocks) {
  const std::int64_t usable = num_blocks - 1, used = pool_.num_blocks() - 1 - pool_.free_blocks();
  const std::int64_t kept = used - pool_.count(BlockState::kCached);
  if (kept > usable) throw OutOfBlocksError(kept, usable);
  FreeSet free = pool_.prepare_resize(num_blocks);
  std::vector<BlockId> buckets = index_.prepare_resize(num_blocks);
  for (std::int64_t left = used - usable; left > 0; --left) evict_one(kEveryGroup);
  const Relocation plan = pool_.plan_shrink(num_blocks);
  journal_.moved(plan.moves());
  pool_.resize(num_blocks, plan, std::move(free));
  index_.resize(num_blocks, plan, std::move(buckets));
  for (auto& entry : holders_) {
    for (BlockId& block : entry.second.table) block = plan(block);
  }
  changed();
  return plan.moves();
}

inline std::pair<std::int64_t, std::int64_t> Core::flush(const std::string* name) {
  const RootId root = name == nullptr ? kNoRoot : index_.find_root(*name);
  std::int64_t freed = 0, kept = 0;
  if (name == nullptr || root != kNoRoot) {
    for (auto& entry : holders_) {
      if (name != nullptr && entry.second.root != root) continue;
      pending_.discard(entry.second);
      entry.second.publish = false;
      entry.second.is_indexed = false;
    }
    for (const BlockId block : index_.members(root)) {
      (pool_.holders(block) == 0 ? freed : kept) += 1;
      index_.remove(block);
      pool_.unpublish(block, kFlush);
    }
  }
  journal_.cleared(name);
  changed();
  return {freed, kept};
}

}  // namespace kvcache
