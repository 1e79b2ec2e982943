// Vocabulary of the native core, and the faults it reports.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvcache {

using BlockId = std::int32_t;
using Token = std::int32_t;
using SequenceId = std::int64_t;
using Digest = std::uint32_t;

constexpr BlockId kNullBlock = 0;  // target of padding, never owned

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
  InvalidArgumentError(const char* field, std::string limit) : field(field), limit(std::move(limit)) {}
  const char* field;
  std::string limit;
};

enum class Operation : std::uint8_t { kAllocate, kHold, kRelease, kPublish, kUnpublish };

// Who acts on a block: a sequence by its id, or the machinery.
constexpr SequenceId kEviction = -1;
constexpr SequenceId kFlush = -2;

// One step in the life of a block.
struct Transition {
  std::uint64_t serial;
  SequenceId actor;
  BlockId block;
  Operation operation;
};

struct IllegalTransitionError : std::exception {
  IllegalTransitionError(const char* state, const char* reason, const Transition& refused,
                         std::vector<Transition> history)
      : state(state), reason(reason), refused(refused), history(std::move(history)) {}
  const char* state;
  const char* reason;
  Transition refused;
  std::vector<Transition> history;  // of the block, oldest first
};

}  // namespace kvcache
