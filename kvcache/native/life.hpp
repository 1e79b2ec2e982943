// The life of a holder: begin, append, commit, release, and fork.
#pragma once

#include "core.hpp"

namespace kvcache {

// Has memory for `more` values, so that to append them does not fail.
template <typename Value>
void grow(std::vector<Value>& values, std::size_t more) {
  if (values.capacity() - values.size() < more) values.reserve(values.size() + values.size() / 2 + more);
}

// The blocks of a match in order. Their tokens are compared again on the way: with a stale
// match the holder would be served the K and V of something else.
inline std::vector<BlockId> Core::path(const std::string& name, TokenSpan tokens, const Match& match) const {
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

// Throws unless a holder of `blocks` can have `fresh` ones too. What blocks of the index take
// from others is as much as new ones would.
inline void Core::require_room(std::int64_t fresh, int group, HolderKind kind, const std::vector<BlockId>& blocks) const {
  Hits hits;
  for (const BlockId block : blocks) {
    hits.cached += pool_.state(block) == BlockState::kCached;
    hits.used += kind != HolderKind::kExpect && pool_.is_idle(block);
  }
  const std::int64_t available = obtainable(group, hits);
  if (fresh > available || (hits.used > 0 && pool_.groups().spare(group, idle_blocks() - hits.used) < 0)) {
    throw OutOfBlocksError(fresh, available);
  }
}

// Notes a holder whose root is acquired already; it takes the first `shared` blocks of its
// table, and new ones for the others.
inline Holder& Core::start(Holder starting, std::size_t shared) {
  const HolderId id = starting.id;
  const RootId root = starting.root;
  starting.serial = ++begun_;
  Holder* started = nullptr;
  try {
    started = &holders_.emplace(id, std::move(starting)).first->second;
    pending_.add(*started);
  } catch (...) {
    holders_.erase(id);
    index_.release_root(root);
    throw;
  }
  auto& table = started->table;
  const BlockClass block_class = started->block_class;
  for (std::size_t number = 0; number < shared; ++number) pool_.hold(table[number], id, started->kind, level_of(block_class));
  make_room(static_cast<std::int64_t>(table.size() - shared), group_of(block_class));
  for (std::size_t number = shared; number < table.size(); ++number) table[number] = pool_.allocate(id, started->kind, block_class);
  live_sequences_ += started->is_sequence();
  count(*started);
  return *started;
}

// Gives the blocks up to `full_blocks` to the index. Where it has a block of the same prefix
// already, the holder takes that one and its own copy is freed. So what is new comes last.
inline void Core::publish(Holder& holder, std::size_t full_blocks) {
  std::size_t first_new = full_blocks;
  for (std::size_t& number = holder.published_blocks; number < full_blocks; ++number) {
    const Parent parent = number == 0 ? as_parent(holder.root) : holder.table[number - 1];
    const Token* tokens = holder.tokens.data() + number * block_tokens_;
    BlockId& block = holder.table[number];
    const BlockId known = index_.find(parent, tokens);
    if (known == kNullBlock) {
      index_.insert(block, parent, tokens);
      pool_.publish(block, holder.id);
      first_new = std::min(first_new, number);
    } else {
      pool_.hold(known, holder.id, holder.kind, level_of(holder.block_class));
      pool_.release(block, holder.id, holder.kind);
      block = known;
      ++deduplicated_;
    }
  }
  if (!journal_.is_on() || first_new == full_blocks) return;
  const auto at = [](auto& values, std::size_t place) { return values.begin() + static_cast<std::ptrdiff_t>(place); };
  journal_.stored(index_.name(holder.root), first_new == 0 ? kNullBlock : holder.table[first_new - 1],
                  {at(holder.table, first_new), at(holder.table, full_blocks)},
                  {at(holder.tokens, first_new * block_tokens_), at(holder.tokens, full_blocks * block_tokens_)});
}

inline void Core::begin(HolderId id, const std::string& name, TokenSpan tokens, const Match& match, const Terms& terms) {
  if (is_live(id)) throw DuplicateSequenceError();
  const int group = group_of(terms.block_class), known_group = namespace_group(name);
  if (known_group >= 0 && known_group != group) {
    throw InvalidArgumentError("group", group, std::to_string(known_group) + ", the group of the namespace");
  }
  const auto hits = static_cast<std::size_t>(match.blocks);
  const std::size_t needed = (tokens.size + block_tokens_ - 1) / block_tokens_;
  const auto fresh = static_cast<std::int64_t>(needed - hits);
  Holder starting;
  starting.table = path(name, tokens, match);
  require_room(fresh, group, terms.kind, starting.table);
  starting.id = id;
  starting.kind = terms.kind;
  starting.block_class = terms.block_class;
  starting.publish = terms.publish;
  starting.tokens.resize(tokens.size);
  if (tokens.size > 0) std::memcpy(starting.tokens.data(), tokens.data, tokens.size * sizeof(Token));
  starting.prompt_tokens = tokens.size;
  starting.computed_tokens = hits * block_tokens_;
  starting.published_blocks = hits;
  starting.table.resize(needed);
  starting.root = index_.acquire_root(name, group);
  // Several requests at one time, such as the candidates of one prompt, are one use.
  const bool marks = terms.is_reuse && hits > 0 && pool_.holders(match.end) == 0;
  const Holder& holder = start(std::move(starting), hits);
  for (std::size_t number = 0; marks && number < hits; ++number) pool_.mark_reused(holder.table[number]);
  changed();
}

inline std::int64_t Core::append(HolderId id, Token token) {
  Holder& holder = find(id);
  if (holder.tokens.size() == holder.table.size() * block_tokens_) {
    const int group = group_of(holder.block_class);
    if (obtainable(group) < 1) return 1;
    grow(holder.table, 1);
    grow(holder.tokens, block_tokens_);
    make_room(1, group);
    uncount(holder);
    holder.table.push_back(pool_.allocate(id, holder.kind, holder.block_class));
    count(holder);
  }
  holder.tokens.push_back(token);
  slack_ -= holder.is_sequence();
  changed();
  return 0;
}

inline void Core::commit(HolderId id, std::int64_t computed_tokens) {
  Holder& holder = find(id);
  const auto target = static_cast<std::size_t>(computed_tokens);
  if (computed_tokens < 0 || target < holder.computed_tokens || target > holder.tokens.size()) {
    throw InvalidArgumentError("computed_tokens", computed_tokens,
                               "from " + std::to_string(holder.computed_tokens) + " (computed before) to " +
                                   std::to_string(holder.tokens.size()) + " (the tokens of sequence " +
                                   std::to_string(id) + ")");
  }
  if (target >= holder.prompt_tokens) pending_.discard(holder);
  uncount(holder);
  holder.computed_tokens = target;
  count(holder);
  if (holder.publish) publish(holder, target / block_tokens_);
  changed();
}

inline bool Core::release(HolderId id) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return false;
  Holder& holder = found->second;
  pending_.discard(holder);
  uncount(holder);
  live_sequences_ -= holder.is_sequence();
  if (holder.is_sequence()) pool_.rings().tick();
  // From the tail up, as the order of eviction demands.
  for (auto block = holder.table.rbegin(); block != holder.table.rend(); ++block) pool_.release(*block, id, holder.kind);
  index_.release_root(holder.root);
  holders_.erase(found);
  changed();
  return true;
}

inline std::optional<std::pair<BlockId, BlockId>> Core::fork(HolderId parent_id, HolderId child_id) {
  const Holder& parent = find(parent_id);
  if (!parent.is_sequence()) throw UnknownSequenceError();
  if (is_live(child_id)) throw DuplicateSequenceError();
  const std::size_t computed = parent.computed_tokens, shared = computed / block_tokens_;
  if (computed + 1 < parent.tokens.size()) {
    throw InvalidArgumentError("computed_tokens", static_cast<std::int64_t>(computed),
                               "at least " + std::to_string(parent.tokens.size() - 1) + " (the tokens of sequence " +
                                   std::to_string(parent_id) + " but the last)");
  }
  require_room(static_cast<std::int64_t>(parent.table.size() - shared), group_of(parent.block_class), parent.kind, {});
  Holder starting = parent;
  starting.id = child_id;
  starting.is_pending = false;
  index_.acquire_root(starting.root);
  const Holder& child = start(std::move(starting), shared);
  changed();
  if (computed % block_tokens_ == 0) return std::nullopt;
  return std::pair(parent.table[shared], child.table[shared]);
}

}  // namespace kvcache
