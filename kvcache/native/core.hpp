// Pool, prefix index and live sequences as one machine; kvcache.core has the contract.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "digest.hpp"
#include "index.hpp"
#include "pool.hpp"
#include "types.hpp"

namespace kvcache {

// Tokens that a caller lends; they need not be aligned.
struct TokenSpan {
  const Token* data;
  std::size_t size;
  const Token* block(std::size_t number, std::size_t block_tokens) const { return data + number * block_tokens; }
};

struct Match {
  std::int64_t blocks = 0;
  std::int64_t evictable_blocks = 0;
  BlockId end = kNullBlock;  // the last matched block
};

struct Counts {
  std::int64_t free, cached, held, shared, reserved, live_sequences, deduplicated, evicted;
};

class Core {
 public:
  Core(BlockId num_blocks, std::size_t block_tokens, EvictionRule rule, int digest_bits)
      : block_tokens_(block_tokens),
        pool_(num_blocks, rule),
        index_(num_blocks, block_tokens, digest_bits),
        evictions_(static_cast<std::size_t>(num_blocks) / 2) {}

  std::uint64_t version() const { return version_; }
  std::int64_t available_blocks() const { return pool_.free_blocks() + pool_.cached_blocks(); }
  std::int64_t live_sequences() const { return static_cast<std::int64_t>(sequences_.size()); }

  Counts counts() const {
    return {pool_.free_blocks(), pool_.cached_blocks(), pool_.held_blocks(), pool_.shared_blocks(),
            reserved_,           live_sequences(),      deduplicated_,       evicted_};
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
      found.evictable_blocks += pool_.holders(block) == 0;
      parent = found.end = block;
    }
    return found;
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
    const RootId root = index_.find_root(name);
    if (root == kNoRoot || max_blocks == 0) return 0;
    const auto group = pending_.find(index_.chain(as_parent(root), tokens.data));
    if (group == pending_.end()) return 0;
    std::size_t longest = 0;
    for (const Sequence* sequence : group->second) {
      if (sequence->root != root) continue;
      const std::size_t most = std::min(max_blocks, sequence->prompt_tokens / block_tokens_);
      longest = std::max(longest, common_blocks(*sequence, tokens, most));
    }
    return static_cast<std::int64_t>(longest);
  }

  // --- the life of a sequence ---

  bool is_live(SequenceId id) const { return sequences_.count(id) > 0; }

  void begin(SequenceId id, const std::string& name, TokenSpan tokens, bool publish, const Match& match,
             bool is_reuse) {
    if (is_live(id)) throw DuplicateSequenceError();
    const auto hits = static_cast<std::size_t>(match.blocks);
    const std::size_t needed = (tokens.size + block_tokens_ - 1) / block_tokens_;
    const auto fresh = static_cast<std::int64_t>(needed - hits);
    const std::int64_t available = available_blocks() - match.evictable_blocks;
    if (fresh > available) throw OutOfBlocksError(fresh, available);

    Sequence starting;
    starting.id = id;
    starting.serial = ++begun_;
    starting.publish = publish;
    starting.tokens.resize(tokens.size);
    std::memcpy(starting.tokens.data(), tokens.data, tokens.size * sizeof(Token));
    starting.prompt_tokens = tokens.size;
    starting.computed_tokens = hits * block_tokens_;
    starting.published_blocks = hits;
    starting.table = path(name, tokens, match);
    starting.table.resize(needed);
    starting.root = index_.acquire_root(name);
    Sequence& sequence = sequences_.emplace(id, std::move(starting)).first->second;

    // Several requests at one time, such as the candidates of one prompt, are one use.
    const bool marks = is_reuse && hits > 0 && pool_.holders(match.end) == 0;
    for (std::size_t number = 0; number < hits; ++number) {
      pool_.hold(sequence.table[number], id);
      if (marks) pool_.mark_reused(sequence.table[number]);
    }
    make_room(fresh);
    for (std::size_t number = hits; number < needed; ++number) sequence.table[number] = pool_.allocate(id);
    if (publish && sequence.prompt_tokens >= block_tokens_) {
      pending_[pending_key(sequence)].push_back(&sequence);
      sequence.is_pending = true;
    }
    reserved_ += unwritten_blocks(sequence);
    changed();
  }

  // Answers 0, or the blocks missing; then nothing has changed.
  std::int64_t append(SequenceId id, Token token) {
    Sequence& sequence = find(id);
    if (sequence.tokens.size() == sequence.table.size() * block_tokens_) {
      if (available_blocks() == 0) return 1;
      sequence.table.reserve(sequence.table.size() + 1 + sequence.table.size() / 2);
      make_room(1);
      sequence.table.push_back(pool_.allocate(id));
      ++reserved_;
    }
    sequence.tokens.push_back(token);
    changed();
    return 0;
  }

  void commit(SequenceId id, std::int64_t computed_tokens) {
    Sequence& sequence = find(id);
    const auto target = static_cast<std::size_t>(computed_tokens);
    if (computed_tokens < 0 || target < sequence.computed_tokens || target > sequence.tokens.size()) {
      throw InvalidArgumentError("computed_tokens",
                                 "from " + std::to_string(sequence.computed_tokens) + " (computed before) to " +
                                     std::to_string(sequence.tokens.size()) + " (the tokens of sequence " +
                                     std::to_string(id) + ")");
    }
    if (target >= sequence.prompt_tokens) discard_pending(sequence);
    reserved_ -= unwritten_blocks(sequence);
    sequence.computed_tokens = target;
    reserved_ += unwritten_blocks(sequence);
    if (sequence.publish) publish(sequence, target / block_tokens_);
    changed();
  }

  bool release(SequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return false;
    Sequence& sequence = found->second;
    discard_pending(sequence);
    reserved_ -= unwritten_blocks(sequence);
    pool_.tick();
    // From the tail up, as the order of eviction demands.
    for (auto block = sequence.table.rbegin(); block != sequence.table.rend(); ++block) pool_.release(*block, id);
    index_.release_root(sequence.root);
    sequences_.erase(found);
    changed();
    return true;
  }

  const std::vector<BlockId>& block_table(SequenceId id) const { return find(id).table; }
  std::int64_t num_tokens(SequenceId id) const { return static_cast<std::int64_t>(find(id).tokens.size()); }
  std::int64_t computed_tokens(SequenceId id) const { return static_cast<std::int64_t>(find(id).computed_tokens); }

  std::int64_t exclusive_blocks(SequenceId id) const {
    const auto& table = find(id).table;
    return std::count_if(table.begin(), table.end(), [this](BlockId block) { return pool_.holders(block) == 1; });
  }

  // The sequences with the longest tables; of equal ones those that began earlier.
  std::vector<SequenceId> largest_holders(std::size_t count) const {
    std::vector<const Sequence*> all;
    all.reserve(sequences_.size());
    for (const auto& entry : sequences_) all.push_back(&entry.second);
    count = std::min(count, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                      [](const Sequence* left, const Sequence* right) {
                        if (left->table.size() != right->table.size()) return left->table.size() > right->table.size();
                        return left->serial < right->serial;
                      });
    std::vector<SequenceId> ids(count);
    for (std::size_t place = 0; place < count; ++place) ids[place] = all[place]->id;
    return ids;
  }

  // --- the whole ---

  // Forgets one namespace (null: all). Answers blocks freed, and blocks that are still held.
  std::pair<std::int64_t, std::int64_t> flush(const std::string* name) {
    const RootId root = name == nullptr ? kNoRoot : index_.find_root(*name);
    std::int64_t freed = 0, kept = 0;
    if (name == nullptr || root != kNoRoot) {
      for (auto& entry : sequences_) {
        if (name != nullptr && entry.second.root != root) continue;
        discard_pending(entry.second);
        entry.second.publish = false;
        entry.second.is_indexed = false;
      }
      for (const BlockId block : index_.members(root)) {
        (pool_.holders(block) == 0 ? freed : kept) += 1;
        index_.remove(block);
        pool_.unpublish(block, kFlush);
      }
    }
    changed();
    return {freed, kept};
  }

  // Calls `visit` with namespace, parent, block and tokens for everything in the index, parents
  // first.
  template <typename Visit>
  void each_indexed(Visit visit) const { index_.each(visit); }

  void check() const { pool_.check(); }

  // Pool, index and sequences against each other, O(everything).
  void audit() const {
    pool_.audit();
    std::vector<std::uint32_t> holders(static_cast<std::size_t>(pool_.num_blocks()));
    std::vector<std::int64_t> root_users;
    std::int64_t reserved = 0;
    std::size_t pending = 0;
    for (const auto& entry : sequences_) {
      const Sequence& sequence = entry.second;
      audit_sequence(sequence);
      for (const BlockId block : sequence.table) ++holders[static_cast<std::size_t>(block)];
      const auto root = static_cast<std::size_t>(sequence.root);
      if (root_users.size() <= root) root_users.resize(root + 1);
      ++root_users[root];
      reserved += unwritten_blocks(sequence);
      pending += sequence.is_pending;
    }
    if (reserved != reserved_) throw ConservationError("the count of reserved blocks is wrong");
    for (const auto& group : pending_) pending -= group.second.size();
    if (pending != 0) throw ConservationError("the pending prefixes are not those of the sequences in prefill");
    index_.audit(std::move(root_users));
    for (BlockId block = 1; block < pool_.num_blocks(); ++block) {
      if (pool_.holders(block) != holders[static_cast<std::size_t>(block)]) {
        throw ConservationError("block " + std::to_string(block) + " has " + std::to_string(pool_.holders(block)) +
                                " references, " + std::to_string(holders[static_cast<std::size_t>(block)]) + " holders");
      }
      if (pool_.is_published(block) != index_.contains(block)) {
        throw ConservationError("pool and index disagree on block " + std::to_string(block));
      }
      if (!index_.contains(block) || is_root(index_.parent(block))) continue;
      if (pool_.holders(index_.parent(block)) < pool_.holders(block)) {
        throw ConservationError("block " + std::to_string(block) + " has more holders than the one before it");
      }
    }
    audit_eviction();
  }

 private:
  struct Sequence {
    SequenceId id = 0;
    std::uint64_t serial = 0;  // in the order of begin
    RootId root = kNoRoot;
    bool publish = false;
    bool is_indexed = true;  // its published blocks are a path of the index, until a flush
    bool is_pending = false;
    std::vector<Token> tokens;
    std::vector<BlockId> table;
    std::size_t prompt_tokens = 0;
    std::size_t computed_tokens = 0;
    std::size_t published_blocks = 0;  // leading blocks of the table that are those of the index
  };

  Sequence& find(SequenceId id) { return const_cast<Sequence&>(std::as_const(*this).find(id)); }

  const Sequence& find(SequenceId id) const {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) throw UnknownSequenceError();
    return found->second;
  }

  // The blocks of a match in order. Their tokens are compared again on the way: with a stale
  // match the sequence would be served the K and V of something else.
  std::vector<BlockId> path(const std::string& name, TokenSpan tokens, const Match& match) const {
    std::vector<BlockId> blocks(static_cast<std::size_t>(match.blocks));
    Parent step = match.blocks > 0 ? match.end : as_parent(index_.find_root(name));
    for (std::size_t number = blocks.size(); number > 0; --number) {
      if (step <= kNullBlock || !index_.is(step, index_.parent(step), tokens.block(number - 1, block_tokens_))) {
        throw ConservationError("a match is not in the index any more");
      }
      blocks[number - 1] = step;
      step = index_.parent(step);
    }
    if (step != as_parent(index_.find_root(name))) throw ConservationError("a match is of another namespace");
    return blocks;
  }

  std::int64_t unwritten_blocks(const Sequence& sequence) const {
    const std::size_t written = (sequence.computed_tokens + block_tokens_ - 1) / block_tokens_;
    return static_cast<std::int64_t>(sequence.table.size() - written);
  }

  std::size_t common_blocks(const Sequence& sequence, TokenSpan tokens, std::size_t most) const {
    std::size_t number = 0;
    while (number < most && std::memcmp(sequence.tokens.data() + number * block_tokens_,
                                        tokens.block(number, block_tokens_), index_.block_bytes()) == 0) {
      ++number;
    }
    return number;
  }

  Digest pending_key(const Sequence& sequence) const {
    return index_.chain(as_parent(sequence.root), sequence.tokens.data());
  }

  // Its prefill is done, or it will not publish.
  void discard_pending(Sequence& sequence) {
    if (!sequence.is_pending) return;
    sequence.is_pending = false;
    const auto group = pending_.find(pending_key(sequence));
    auto& members = group->second;
    members.erase(std::find(members.begin(), members.end(), &sequence));
    if (members.empty()) pending_.erase(group);
  }

  // Evicts until `count` blocks are free. The caller knows that there are enough.
  void make_room(std::int64_t count) {
    while (pool_.free_blocks() < count) {
      const BlockId victim = pool_.victim();
      evictions_.remember(index_.digest(victim));
      index_.remove(victim);
      pool_.unpublish(victim, kEviction);
      ++evicted_;
    }
  }

  // Gives the blocks up to `full_blocks` to the index. Where it has a block of the same prefix
  // already, the sequence takes that one and its own copy is freed.
  void publish(Sequence& sequence, std::size_t full_blocks) {
    for (std::size_t& number = sequence.published_blocks; number < full_blocks; ++number) {
      const Parent parent = number == 0 ? as_parent(sequence.root) : sequence.table[number - 1];
      const Token* tokens = sequence.tokens.data() + number * block_tokens_;
      BlockId& block = sequence.table[number];
      const BlockId known = index_.find(parent, tokens);
      if (known == kNullBlock) {
        pool_.publish(block, sequence.id);
        index_.insert(block, parent, tokens);
      } else {
        pool_.hold(known, sequence.id);
        pool_.release(block, sequence.id);
        block = known;
        ++deduplicated_;
      }
    }
  }

  // Of two cached blocks, the one that continues the other goes first.
  void audit_eviction() const {
    std::vector<std::size_t> place(static_cast<std::size_t>(pool_.num_blocks()));
    std::size_t next = 0;
    pool_.each_cached([&](BlockId block) { place[static_cast<std::size_t>(block)] = ++next; });
    pool_.each_cached([&](BlockId block) {
      const Parent parent = index_.parent(block);
      if (!is_root(parent) && pool_.holders(parent) == 0 &&
          place[static_cast<std::size_t>(parent)] < place[static_cast<std::size_t>(block)]) {
        throw ConservationError("block " + std::to_string(block) + " would be evicted after the one before it");
      }
    });
  }

  void audit_sequence(const Sequence& sequence) const {
    const std::string name = "sequence " + std::to_string(sequence.id);
    const std::size_t needed = (sequence.tokens.size() + block_tokens_ - 1) / block_tokens_;
    if (sequence.table.size() != needed) throw ConservationError(name + " has blocks that do not fit its tokens");
    std::vector<BlockId> sorted = sequence.table;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw ConservationError(name + " has a block twice");
    const bool is_prefilling = sequence.publish && sequence.computed_tokens < sequence.prompt_tokens;
    if (sequence.is_pending != (is_prefilling && sequence.prompt_tokens >= block_tokens_)) {
      throw ConservationError(name + " is pending against its state");
    }
    if (!sequence.is_indexed) return;
    for (std::size_t number = 0; number < sequence.published_blocks; ++number) {
      const Parent parent = number == 0 ? as_parent(sequence.root) : sequence.table[number - 1];
      if (!index_.is(sequence.table[number], parent, sequence.tokens.data() + number * block_tokens_)) {
        throw ConservationError("the path of " + name + " is not its own");
      }
    }
  }

  void changed() {
    ++version_;
    check();
  }

  std::size_t block_tokens_;
  Pool pool_;
  Index index_;
  EvictionMemory evictions_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::unordered_map<Digest, std::vector<Sequence*>> pending_;  // by namespace and first block
  std::int64_t reserved_ = 0;                                   // blocks in tables without a computed token
  std::int64_t deduplicated_ = 0;
  std::int64_t evicted_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t version_ = 0;  // grows with every change, so that a plan knows whether it is stale
};

}  // namespace kvcache
