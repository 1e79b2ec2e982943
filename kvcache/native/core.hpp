// Pool, prefix index and holders as one machine; kvcache.core has the contract.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "eviction_memory.hpp"
#include "holder.hpp"
#include "index.hpp"
#include "journal.hpp"
#include "pool.hpp"
#include "types.hpp"

namespace kvcache {

// What a holder takes of the index.
struct Hits {
  std::int64_t cached = 0;  // that are CACHED
  std::int64_t used = 0;    // that are CACHED or EXPECTED, and in use from then on
};

struct Match {
  std::int64_t blocks = 0;
  std::int64_t idle_blocks = 0;  // of these, CACHED or EXPECTED
  BlockId end = kNullBlock;      // the last matched block
};

// What a holder is, beside its tokens.
struct Terms {
  HolderKind kind;
  BlockClass block_class;
  bool publish;
  bool is_reuse;
};

class Core {
 public:
  Core(BlockId num_blocks, std::size_t block_tokens, EvictionRule rule, bool record_events, int digest_bits)
      : block_tokens_(block_tokens),
        pool_(num_blocks, rule),
        index_(num_blocks, block_tokens, digest_bits),
        evictions_(static_cast<std::size_t>(num_blocks) / 2),
        pending_(index_),
        journal_(record_events) {}

  // --- figures ---

  std::uint64_t version() const { return version_; }
  BlockId num_blocks() const { return pool_.num_blocks(); }
  std::size_t block_tokens() const { return block_tokens_; }
  const Pool& pool() const { return pool_; }
  std::int64_t live_sequences() const { return live_sequences_; }
  std::int64_t reserved_blocks() const { return reserved_; }
  std::int64_t slack_tokens() const { return slack_; }
  std::int64_t deduplicated_blocks() const { return deduplicated_; }
  std::int64_t evicted_blocks() const { return evicted_; }

  std::int64_t available_blocks(int group) const {
    const Groups& groups = pool_.groups();
    const std::int64_t spare = groups.spare(group, idle_blocks());
    return std::max<std::int64_t>(0, groups.within_quota(group, spare, groups.at(group).in_use));
  }

  // The group of a namespace; -1 if it has neither blocks nor holders.
  int namespace_group(const std::string& name) const {
    const RootId root = index_.find_root(name);
    return root == kNoRoot ? -1 : index_.group(root);
  }

  // --- lookups ---

  Match match(const std::string& name, TokenSpan tokens, std::size_t max_blocks) const {
    Match found;
    const RootId root = index_.find_root(name);
    if (root == kNoRoot) return found;
    Parent parent = as_parent(root);
    for (std::size_t number = 0; number < max_blocks; ++number) {
      const BlockId block = index_.find(parent, tokens.block(number, block_tokens_));
      if (block == kNullBlock) break;
      ++found.blocks;
      found.idle_blocks += pool_.is_idle(block);
      parent = found.end = block;
    }
    return found;
  }

  // A block that goes on like `tokens` behind the match, and how many of its tokens do so. The
  // last of `tokens` is left out: it is always computed.
  std::pair<BlockId, std::int64_t> partial_match(const std::string& name, TokenSpan tokens, const Match& match) const {
    const RootId root = index_.find_root(name);
    const std::size_t known = static_cast<std::size_t>(match.blocks) * block_tokens_;
    if (root == kNoRoot || tokens.size < known + 2) return {kNullBlock, 0};
    const Token* rest = tokens.data + known;
    const std::size_t most = std::min(block_tokens_, tokens.size - known - 1);
    const BlockId block = index_.find_beginning(match.blocks > 0 ? match.end : as_parent(root), *rest);
    if (block == kNullBlock) return {kNullBlock, 0};
    return {block, std::mismatch(rest, rest + most, index_.tokens_of(block)).first - rest};
  }

  // Blocks right behind the match that were evicted not long ago.
  std::int64_t forgotten_blocks(const std::string& name, TokenSpan tokens, const Match& match,
                                std::size_t max_blocks) const {
    if (evictions_.is_empty()) return 0;
    Digest digest = match.blocks > 0 ? index_.digest(match.end) : index_.name_digest(name);
    const auto first = static_cast<std::size_t>(match.blocks);
    std::size_t number = first;
    for (; number < max_blocks; ++number) {
      digest = index_.chain(digest, tokens.block(number, block_tokens_));
      if (!evictions_.contains(digest)) break;
    }
    return static_cast<std::int64_t>(number - first);
  }

  // Whether another namespace has the first block of `tokens`, and this one has not.
  bool begins_elsewhere(const std::string& name, TokenSpan tokens) const {
    const RootId root = index_.find_root(name);
    if (root != kNoRoot && index_.find(as_parent(root), tokens.data) != kNullBlock) return false;
    return index_.roots_beginning_with(tokens.data) > 0;
  }

  // The most leading blocks that `tokens` share with a prompt that is being computed.
  std::int64_t pending_blocks(const std::string& name, TokenSpan tokens, std::size_t max_blocks) const {
    return pending_.longest(index_.find_root(name), tokens, max_blocks);
  }

  // --- the life of a holder ---

  bool is_live(HolderId id) const { return holders_.count(id) > 0; }

  void begin(HolderId id, const std::string& name, TokenSpan tokens, const Match& match, const Terms& terms);

  // Answers 0, or the blocks missing; then nothing has changed.
  std::int64_t append(HolderId id, Token token);

  void commit(HolderId id, std::int64_t computed_tokens);
  bool release(HolderId id);

  // A second sequence with the tokens and the progress of a live one. Answers what to copy: the
  // parent's block that is computed in part, and the child's.
  std::optional<std::pair<BlockId, BlockId>> fork(HolderId parent_id, HolderId child_id);

  // --- one holder, and many ---

  const Holder& holder(HolderId id) const { return find(id); }

  std::int64_t exclusive_blocks(HolderId id) const {
    const auto& table = find(id).table;
    return std::count_if(table.begin(), table.end(), [this](BlockId block) { return pool_.holders(block) == 1; });
  }

  // The sequences with the longest tables; of equal ones those that began earlier.
  std::vector<HolderId> largest_holders(std::size_t count) const {
    std::vector<const Holder*> all;
    all.reserve(holders_.size());
    for (const auto& entry : holders_) {
      if (entry.second.is_sequence()) all.push_back(&entry.second);
    }
    count = std::min(count, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                      [](const Holder* left, const Holder* right) {
                        if (left->table.size() != right->table.size()) return left->table.size() > right->table.size();
                        return left->serial < right->serial;
                      });
    std::vector<HolderId> ids(count);
    for (std::size_t place = 0; place < count; ++place) ids[place] = all[place]->id;
    return ids;
  }

  // --- the whole ---

  void set_group(int group, std::int64_t floor_blocks, std::int64_t quota_blocks) {
    pool_.groups().set(group, floor_blocks, quota_blocks);
    changed();
  }

  // No expiry falls, and none is above that of the level below: a block never outlives what leads to it.
  void set_expiry(int level, std::int64_t tick) {
    EvictionRings& rings = pool_.rings();
    const std::int64_t low = rings.expiry(level), high = level == 1 ? rings.now() : rings.expiry(level - 1);
    if (tick < low || tick > high) {
      throw InvalidArgumentError("tick", tick, "from " + std::to_string(low) + " to " + std::to_string(high));
    }
    rings.set_expiry(level, tick);
    changed();
  }

  // Evicts up to `count` blocks, whoever they are kept for. Answers how many.
  std::int64_t evict(std::int64_t count) {
    count = std::min(count, pool_.count(BlockState::kCached));
    for (std::int64_t left = count; left > 0; --left) evict_one(kEveryGroup);
    changed();
    return count;
  }

  // Grows, or shrinks by moving what is left at the tail. Answers the moves.
  std::vector<std::pair<BlockId, BlockId>> resize(BlockId num_blocks);

  // Forgets one namespace (null: all). Answers blocks freed, and blocks that are still held.
  std::pair<std::int64_t, std::int64_t> flush(const std::string* name);

  Journal& journal() { return journal_; }
  std::deque<Sample> drain_samples() { return pool_.samples().drain(); }

  // Calls `visit` with namespace, parent, block and tokens for everything in the index, parents
  // first.
  template <typename Visit>
  void each_indexed(Visit visit) const { index_.each(visit); }

  void check() const { pool_.check(); }
  void audit() const;

 private:
  static constexpr std::uint32_t kEveryGroup = ~std::uint32_t{0};

  Holder& find(HolderId id) { return const_cast<Holder&>(std::as_const(*this).find(id)); }

  const Holder& find(HolderId id) const {
    const auto found = holders_.find(id);
    if (found == holders_.end()) throw UnknownSequenceError();
    return found->second;
  }

  std::vector<BlockId> path(const std::string& name, TokenSpan tokens, const Match& match) const;

  // --- room ---

  std::int64_t idle_blocks() const {
    return pool_.free_blocks() + pool_.count(BlockState::kCached) + pool_.count(BlockState::kExpected);
  }

  // The blocks that a holder of the group can have now.
  std::int64_t obtainable(int group) const { return obtainable(group, Hits()); }

  // The same for one that holds hits, as if it did so already. EXPECTED blocks are available, but
  // not evicted.
  std::int64_t obtainable(int group, const Hits& hits) const {
    const Groups& groups = pool_.groups();
    const Groups::Group& own = groups.at(group);
    const std::int64_t spare = groups.spare(group, idle_blocks() - hits.used);
    const std::int64_t reachable = groups.reachable(group, pool_.free_blocks(), pool_.count(BlockState::kCached)) - hits.cached;
    return std::max<std::int64_t>(0, groups.within_quota(group, std::min(spare, reachable), own.in_use + own.expected + hits.cached));
  }

  void require_room(std::int64_t fresh, int group, HolderKind kind, const std::vector<BlockId>& blocks) const;

  // Evicts until `count` blocks are free and the quota of the group allows them. There are enough.
  void make_room(std::int64_t count, int group) {
    if (count == 0) return;
    for (std::int64_t excess = pool_.groups().excess(group, count); excess > 0; --excess) evict_one(std::uint32_t{1} << group);
    while (pool_.free_blocks() < count) evict_one(pool_.groups().evictable_for(group));
  }

  void evict_one(std::uint32_t groups) {
    const BlockId victim = pool_.rings().victim(groups);
    if (victim == kNullBlock) throw ConservationError("there is no block to evict, against the books");
    evictions_.remember(index_.digest(victim));
    journal_.removed(victim);
    index_.remove(victim);
    pool_.unpublish(victim, kEviction);
    ++evicted_;
  }

  // --- holders ---

  Holder& start(Holder starting, std::size_t shared);
  void publish(Holder& holder, std::size_t full_blocks);

  // Takes a sequence into the sums over all of them; `uncount` takes it out while it changes.
  void count(const Holder& holder) { count(holder, +1); }
  void uncount(const Holder& holder) { count(holder, -1); }

  void count(const Holder& holder, int sign) {
    if (!holder.is_sequence()) return;
    const std::size_t written = (holder.computed_tokens + block_tokens_ - 1) / block_tokens_;
    reserved_ += sign * static_cast<std::int64_t>(holder.table.size() - written);
    slack_ += sign * static_cast<std::int64_t>(holder.table.size() * block_tokens_ - holder.tokens.size());
  }

  // Holders of each block by kind.
  using BlockHolders = std::vector<std::array<std::int64_t, kHolderKinds>>;

  void audit_holder(const Holder& holder) const;
  void audit_blocks(const BlockHolders& holders) const;
  void audit_eviction() const;

  void changed() {
    ++version_;
    check();
  }

  std::size_t block_tokens_;
  Pool pool_;
  Index index_;
  EvictionMemory evictions_;
  std::unordered_map<HolderId, Holder> holders_;
  PendingPrefixes pending_;
  Journal journal_;
  std::int64_t live_sequences_ = 0;
  std::int64_t reserved_ = 0;  // blocks in tables of sequences without a computed token
  std::int64_t slack_ = 0;     // slots in tables of sequences without a token
  std::int64_t deduplicated_ = 0;
  std::int64_t evicted_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t version_ = 0;  // grows with every change, so that a plan knows whether it is stale
};

}  // namespace kvcache
