// Vocabulary of the native core, and the faults it reports.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {

using BlockId = std::int32_t;
using Token = std::int32_t;
using HolderId = std::int64_t;
using Digest = std::uint32_t;

constexpr BlockId kNullBlock = 0;  // target of padding, never owned

// What a block is held for. All but sequences are few at a time.
enum class HolderKind : std::uint8_t { kSequence, kPin, kLoad, kStore, kExpect };
constexpr int kHolderKinds = 5;

// The first of these that applies to a block, from the last to the first: see Pool::state.
enum class BlockState : std::uint8_t { kNull, kFree, kCached, kExpected, kPinned, kStoring, kLoading, kHeld };
constexpr int kBlockStates = 8;

// Who pays for a block, and how long it is worth keeping: group * kLevels + level.
using BlockClass = std::uint8_t;
constexpr int kGroups = 32;  // of tenants
constexpr int kLevels = 8;   // of retention; higher is kept longer
constexpr int kClasses = kGroups * kLevels;
constexpr int group_of(BlockClass block_class) { return block_class / kLevels; }
constexpr int level_of(BlockClass block_class) { return block_class % kLevels; }

// Thrown before anything has changed. The binding turns each into the exception of
// kvcache.errors that has its name.

struct ConservationError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct OutOfBlocksError : std::exception {
  OutOfBlocksError(std::int64_t wanted, std::int64_t free) : wanted_blocks(wanted), free_blocks(free) {}
  std::int64_t wanted_blocks;
  std::int64_t free_blocks;
};

struct UnknownSequenceError : std::exception {};

struct DuplicateSequenceError : std::exception {};

struct InvalidArgumentError : std::exception {
  InvalidArgumentError(const char* field, std::int64_t value, std::string limit)
      : field(field), value(value), limit(std::move(limit)) {}
  const char* field;
  std::int64_t value;
  std::string limit;
};

enum class Operation : std::uint8_t { kAllocate, kHold, kRelease, kPublish, kUnpublish };

// Who acts on a block: a holder by its id, or the machinery.
constexpr HolderId kEviction = -1;
constexpr HolderId kFlush = -2;

// One step in the life of a block.
struct Transition {
  std::uint64_t serial;
  HolderId actor;
  BlockId block;
  Operation operation;
};

struct IllegalTransitionError : std::exception {
  IllegalTransitionError(BlockState state, const char* reason, const Transition& refused,
                         std::vector<Transition> history)
      : state(state), reason(reason), refused(refused), history(std::move(history)) {}
  BlockState state;
  const char* reason;
  Transition refused;
  std::vector<Transition> history;  // of the block, oldest first
};

}  // namespace kvcache
