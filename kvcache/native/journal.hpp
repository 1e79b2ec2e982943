// What happened to the index since somebody last asked.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "types.hpp"

namespace kvcache {

struct Event {
  enum class Kind { kStored, kRemoved, kCleared, kMoved } kind;
  std::optional<std::string> name;  // stored, cleared: the namespace; none: all of them
  BlockId parent = kNullBlock;      // stored: what the first block continues; the null block: nothing
  std::vector<BlockId> blocks = {};
  std::vector<Token> tokens = {};                      // stored: of all blocks
  std::vector<std::pair<BlockId, BlockId>> moves = {};  // moved: source, destination
};

class Journal {
 public:
  explicit Journal(bool is_on) : is_on_(is_on) {}

  bool is_on() const { return is_on_; }

  void turn(bool on) {
    if (on != is_on_) events_.clear();
    is_on_ = on;
  }

  void stored(const std::string& name, BlockId parent, std::vector<BlockId> blocks, std::vector<Token> tokens) {
    events_.push_back({Event::Kind::kStored, name, parent, std::move(blocks), std::move(tokens)});
  }

  // Evictions with nothing between them are one event.
  void removed(BlockId block) {
    if (!is_on_) return;
    if (events_.empty() || events_.back().kind != Event::Kind::kRemoved) events_.push_back({Event::Kind::kRemoved, std::nullopt});
    events_.back().blocks.push_back(block);
  }

  void cleared(const std::string* name) {
    if (!is_on_) return;
    events_.push_back({Event::Kind::kCleared, name == nullptr ? std::nullopt : std::optional(*name)});
  }

  void moved(const std::vector<std::pair<BlockId, BlockId>>& moves) {
    if (!is_on_ || moves.empty()) return;
    events_.push_back({Event::Kind::kMoved, std::nullopt, kNullBlock, {}, {}, moves});
  }

  std::vector<Event> drain() { return std::exchange(events_, {}); }

 private:
  bool is_on_;
  std::vector<Event> events_;
};

}  // namespace kvcache
