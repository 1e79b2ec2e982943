// Who holds blocks, and whose prompts are being computed.
#pragma once

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "index.hpp"
#include "types.hpp"

namespace kvcache {

// Tokens that a caller lends; they need not be aligned.
struct TokenSpan {
  const Token* data;
  std::size_t size;
  const Token* block(std::size_t number, std::size_t block_tokens) const { return data + number * block_tokens; }
};

// A sequence, or a pin, transfer or expectation, which hold blocks in the same way.
struct Holder {
  HolderId id = 0;
  std::uint64_t serial = 0;  // in the order of begin
  RootId root = kNoRoot;
  HolderKind kind = HolderKind::kSequence;
  BlockClass block_class = 0;
  bool publish = false;
  bool is_indexed = true;  // its published blocks are a path of the index, until a flush
  bool is_pending = false;
  std::vector<Token> tokens = {};
  std::vector<BlockId> table = {};
  std::size_t prompt_tokens = 0;
  std::size_t computed_tokens = 0;
  std::size_t published_blocks = 0;  // leading blocks of the table that are those of the index

  bool is_sequence() const { return kind == HolderKind::kSequence; }
  bool is_prefilling() const { return publish && computed_tokens < prompt_tokens; }
};

// The holders that publish and have not computed their prompt, by namespace and first block.
class PendingPrefixes {
 public:
  explicit PendingPrefixes(const Index& index) : index_(index) {}

  // The holder stays where it is. Without a whole block it is of no use to others.
  void add(Holder& holder) {
    if (!holder.is_prefilling() || holder.prompt_tokens < index_.block_tokens()) return;
    groups_[key(holder)].push_back(&holder);
    holder.is_pending = true;
  }

  // Its prefill is done, or it will not publish.
  void discard(Holder& holder) {
    if (!holder.is_pending) return;
    holder.is_pending = false;
    const auto group = groups_.find(key(holder));
    auto& members = group->second;
    members.erase(std::find(members.begin(), members.end(), &holder));
    if (members.empty()) groups_.erase(group);
  }

  // The most leading blocks, up to `max_blocks`, that `tokens` share with one of them.
  std::int64_t longest(RootId root, TokenSpan tokens, std::size_t max_blocks) const {
    if (root == kNoRoot || max_blocks == 0) return 0;
    const auto group = groups_.find(index_.chain(as_parent(root), tokens.data));
    if (group == groups_.end()) return 0;
    std::size_t longest = 0;
    for (const Holder* holder : group->second) {
      if (holder->root != root) continue;
      const std::size_t most = std::min(max_blocks, holder->prompt_tokens / index_.block_tokens());
      longest = std::max(longest, common_blocks(*holder, tokens, most));
    }
    return static_cast<std::int64_t>(longest);
  }

  std::size_t size() const {
    std::size_t members = 0;
    for (const auto& group : groups_) members += group.second.size();
    return members;
  }

 private:
  std::size_t common_blocks(const Holder& holder, TokenSpan tokens, std::size_t most) const {
    const std::size_t size = index_.block_tokens();
    std::size_t number = 0;
    while (number < most && std::memcmp(holder.tokens.data() + number * size, tokens.block(number, size), index_.block_bytes()) == 0) {
      ++number;
    }
    return number;
  }

  Digest key(const Holder& holder) const { return index_.chain(as_parent(holder.root), holder.tokens.data()); }

  const Index& index_;
  std::unordered_map<Digest, std::vector<Holder*>> groups_;
};

}  // namespace kvcache
