// The prefix index: which block holds the K and V of which tokens.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "digest.hpp"
#include "hints.hpp"
#include "relocation.hpp"
#include "types.hpp"

namespace kvcache {

// What a block continues: the block before it, or for a first block its namespace.
using Parent = std::int32_t;
using RootId = std::int32_t;
constexpr Parent kNotIndexed = std::numeric_limits<Parent>::min();
constexpr RootId kNoRoot = -1;

inline Parent as_parent(RootId root) { return ~root; }
inline bool is_root(Parent parent) { return parent < 0; }

// A trie with one node a block, kept in arrays by block id: there is nothing to allocate, split
// or merge. Children are found in one hash table by (parent, tokens), both compared exactly. As
// the parent is compared as a block id, equality of whole prefixes follows by induction: a block
// leaves the index after all that continue it.
//
// A block costs 17 bytes here, its bucket and its part of the hints included, beside its tokens.
class Index {
 public:
  Index(BlockId num_blocks, std::size_t block_tokens, int digest_bits)
      : block_tokens_(block_tokens),
        entries_(static_cast<std::size_t>(num_blocks)),
        buckets_(entries_.size(), kNullBlock),
        tokens_(entries_.size() * block_tokens),
        hints_(num_blocks),
        digester_(digest_bits) {}

  bool contains(BlockId block) const { return at(block).parent != kNotIndexed; }
  Parent parent(BlockId block) const { return at(block).parent; }
  Digest digest(BlockId block) const { return at(block).digest; }

  // --- namespaces: a root lives while a block or a user needs it ---

  RootId find_root(const std::string& name) const {
    const auto found = root_ids_.find(name);
    return found == root_ids_.end() ? kNoRoot : found->second;
  }

  // A new one is of `group`.
  RootId acquire_root(const std::string& name, int group) {
    RootId id = find_root(name);
    if (id == kNoRoot) {
      if (vacant_roots_.empty()) {
        vacant_roots_.push_back(static_cast<RootId>(roots_.size()));
        roots_.emplace_back();
      }
      id = vacant_roots_.back();
      root_ids_.emplace(name, id);
      vacant_roots_.pop_back();
      root(id) = {name, name_digest(name), group, 0};
    }
    return acquire_root(id);
  }

  RootId acquire_root(RootId id) {
    ++root(id).users;
    return id;
  }

  void release_root(RootId id) {
    if (--root(id).users > 0) return;
    root_ids_.erase(root(id).name);
    root(id).name.clear();
    vacant_roots_.push_back(id);
  }

  const std::string& name(RootId id) const { return root(id).name; }
  int group(RootId id) const { return root(id).group; }

  // --- reading ---

  // The block that continues `parent` with these tokens; the null block if there is none.
  BlockId find(Parent parent, const Token* tokens) const {
    const Digest digest = chain(parent, tokens);
    BlockId block = buckets_[slot_of(digest, buckets_.size())];
    while (block != kNullBlock && (at(block).digest != digest || !is(block, parent, tokens))) block = at(block).chain;
    return block;
  }

  // A block that continues `parent` and begins with the token, or else the null block: the one
  // inserted last, if it is remembered.
  BlockId find_beginning(Parent parent, Token first) const {
    const BlockId block = hints_.find(std::max(kNullBlock, parent), first);
    return block < static_cast<BlockId>(entries_.size()) && block != kNullBlock && at(block).parent == parent && *tokens_of(block) == first ? block : kNullBlock;
  }

  const Token* tokens_of(BlockId block) const { return &tokens_[static_cast<std::size_t>(block) * block_tokens_]; }

  Digest chain(Parent parent, const Token* tokens) const {
    return chain(is_root(parent) ? root(~parent).digest : at(parent).digest, tokens);
  }

  Digest chain(Digest previous, const Token* tokens) const {
    return digester_.chain(previous, tokens, block_bytes());
  }

  Digest name_digest(const std::string& name) const { return digester_.chain(0, name.data(), name.size()); }

  // How many namespaces have a first block of these tokens.
  std::uint32_t roots_beginning_with(const Token* tokens) const { return first_blocks_.count(chain(Digest{0}, tokens)); }

  // --- changing ---

  // `block` is not in the index, and nothing there has its parent and tokens.
  void insert(BlockId block, Parent parent, const Token* tokens) {
    if (is_root(parent)) {
      first_blocks_.add(chain(Digest{0}, tokens));
      ++root(~parent).users;
    }
    const Digest digest = chain(parent, tokens);
    BlockId& bucket = buckets_[slot_of(digest, buckets_.size())];
    std::memcpy(tokens_of(block), tokens, block_bytes());
    at(block) = {parent, bucket, digest};
    bucket = block;
    hints_.note(std::max(kNullBlock, parent), *tokens, block);
  }

  // `block` is in the index. What continues it must go too.
  void remove(BlockId block) {
    Entry& entry = at(block);
    BlockId* link = &buckets_[slot_of(entry.digest, buckets_.size())];
    while (*link != block) link = &at(*link).chain;
    *link = entry.chain;
    const Parent parent = entry.parent;
    entry.parent = kNotIndexed;
    if (is_root(parent)) {
      first_blocks_.subtract(chain(Digest{0}, tokens_of(block)));
      release_root(~parent);
    }
  }

  // Has memory for so many blocks; then `resize` does not fail.
  std::vector<BlockId> prepare_resize(BlockId num_blocks) {
    const auto size = static_cast<std::size_t>(num_blocks);
    entries_.reserve(size);
    tokens_.reserve(size * block_tokens_);
    return std::vector<BlockId>(size, kNullBlock);
  }

  // Follows the blocks to where they go. `buckets` come from `prepare_resize`; their chains are
  // made anew.
  void resize(BlockId num_blocks, const Relocation& plan, std::vector<BlockId> buckets) {
    for (const auto& [source, destination] : plan.moves()) {
      at(destination) = std::exchange(at(source), Entry());
      std::memcpy(tokens_of(destination), std::as_const(*this).tokens_of(source), block_bytes());
    }
    entries_.resize(static_cast<std::size_t>(num_blocks));
    tokens_.resize(entries_.size() * block_tokens_);
    entries_.shrink_to_fit();
    tokens_.shrink_to_fit();
    buckets_ = std::move(buckets);
    for (BlockId block = 1; block < num_blocks; ++block) {
      if (!contains(block)) continue;
      Entry& entry = at(block);
      if (!is_root(entry.parent)) entry.parent = plan(entry.parent);
      BlockId& bucket = buckets_[slot_of(entry.digest, buckets_.size())];
      entry.chain = std::exchange(bucket, block);
    }
    hints_.rename(plan);
  }

  // The blocks of a namespace (kNoRoot: of all), O(num_blocks).
  std::vector<BlockId> members(RootId wanted) const {
    constexpr RootId unknown = -2;
    std::vector<RootId> roots(wanted == kNoRoot ? 0 : entries_.size(), unknown);
    std::vector<BlockId> found, path;
    for (BlockId block = 1; block < static_cast<BlockId>(entries_.size()); ++block) {
      if (!contains(block)) continue;
      if (wanted != kNoRoot) {
        Parent step = block;
        path.clear();
        while (!is_root(step) && roots[static_cast<std::size_t>(step)] == unknown) {
          path.push_back(step);
          step = parent(step);
        }
        const RootId root = is_root(step) ? ~step : roots[static_cast<std::size_t>(step)];
        for (const BlockId passed : path) roots[static_cast<std::size_t>(passed)] = root;
        if (root != wanted) continue;
      }
      found.push_back(block);
    }
    return found;
  }

  // Calls `visit(namespace, parent, block, tokens)` for every block, parents first, O(num_blocks).
  template <typename Visit>
  void each(Visit visit) const {
    std::vector<const std::string*> names(entries_.size());  // of those visited
    std::vector<BlockId> path;
    for (const BlockId block : members(kNoRoot)) {
      Parent step = block;
      for (; !is_root(step) && names[static_cast<std::size_t>(step)] == nullptr; step = parent(step)) path.push_back(step);
      const std::string* name = is_root(step) ? &root(~step).name : names[static_cast<std::size_t>(step)];
      for (; !path.empty(); path.pop_back()) {
        names[static_cast<std::size_t>(path.back())] = name;
        visit(*name, parent(path.back()), path.back(), tokens_of(path.back()));
      }
    }
  }

  // --- audit ---

  // Whether `block` continues `parent` with these tokens.
  bool is(BlockId block, Parent parent, const Token* tokens) const {
    return at(block).parent == parent && std::memcmp(tokens_of(block), tokens, block_bytes()) == 0;
  }

  // Every entry against the hash table and the counts of its namespace, O(number of tokens).
  // `users` are those of each root beside its blocks.
  void audit(std::vector<std::int64_t> users) const {
    DigestCounts first_blocks;
    for (BlockId block = 1; block < static_cast<BlockId>(entries_.size()); ++block) {
      if (!contains(block)) continue;
      const Parent parent = at(block).parent;
      if (is_root(parent)) {
        const auto id = static_cast<std::size_t>(~parent);
        if (id >= roots_.size()) throw ConservationError("a block has an unknown namespace");
        if (users.size() <= id) users.resize(id + 1);
        ++users[id];
        const Digest first = chain(Digest{0}, tokens_of(block));
        first_blocks.add(first);
        if (first_blocks.count(first) > first_blocks_.count(first)) throw ConservationError("the count of first blocks is wrong");
      } else if (!contains(parent)) {
        throw ConservationError("block " + std::to_string(block) + " continues a block outside the index");
      }
      if (at(block).digest != chain(parent, tokens_of(block))) throw ConservationError("a digest is wrong");
      if (find(parent, tokens_of(block)) != block) {
        throw ConservationError("block " + std::to_string(block) + " is not found by its tokens, or twice in the index");
      }
    }
    if (first_blocks.size() != first_blocks_.size()) throw ConservationError("the count of first blocks is wrong");
    users.resize(roots_.size());
    std::size_t live = 0;
    for (std::size_t id = 0; id < roots_.size(); ++id) {
      const bool is_named = find_root(roots_[id].name) == static_cast<RootId>(id);
      if (roots_[id].users != users[id] || is_named != (users[id] > 0)) throw ConservationError("a namespace is kept without need, or miscounted");
      live += is_named;
    }
    if (live != root_ids_.size()) throw ConservationError("a namespace has no root");
  }

  std::size_t block_tokens() const { return block_tokens_; }
  std::size_t block_bytes() const { return block_tokens_ * sizeof(Token); }

 private:
  struct Entry {
    Parent parent = kNotIndexed;
    BlockId chain = kNullBlock;  // next in the bucket
    Digest digest = 0;           // of the whole prefix
  };

  struct Root {
    std::string name;
    Digest digest = 0;
    int group = 0;           // of all blocks
    std::int64_t users = 0;  // first blocks and live holders
  };

  Entry& at(BlockId block) { return entries_[static_cast<std::size_t>(block)]; }
  const Entry& at(BlockId block) const { return entries_[static_cast<std::size_t>(block)]; }
  Root& root(RootId id) { return roots_[static_cast<std::size_t>(id)]; }
  const Root& root(RootId id) const { return roots_[static_cast<std::size_t>(id)]; }
  Token* tokens_of(BlockId block) { return &tokens_[static_cast<std::size_t>(block) * block_tokens_]; }

  std::size_t block_tokens_;
  std::vector<Entry> entries_;
  std::vector<BlockId> buckets_;  // first of each chain
  std::vector<Token> tokens_;     // [num_blocks][block_tokens]
  Hints hints_;
  Digester digester_;
  DigestCounts first_blocks_;  // first blocks by their tokens alone, over all namespaces
  std::vector<Root> roots_;
  std::vector<RootId> vacant_roots_;
  std::unordered_map<std::string, RootId> root_ids_;
};

}  // namespace kvcache
