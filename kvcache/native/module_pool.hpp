// Methods of kvcache._native.NativeCore: the whole pool, its figures, and what happened to it.
#pragma once

#include <array>
#include <optional>

#include "audit.hpp"
#include "module_holders.hpp"
#include "whole.hpp"

namespace kvcache::python {

// --- the whole ---

inline PyObject* set_group(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded([&] {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const int group = as_group(arguments[0]);
    const std::int64_t floor_blocks = as_number(arguments[1], "floor_blocks", 0, most, "at least 0");
    const std::int64_t quota_blocks = as_number(arguments[2], "quota_blocks", Groups::kNoQuota, most, "at least 0, or -1 for none");
    core_of(self).set_group(group, floor_blocks, quota_blocks);
    return none();
  });
}

inline PyObject* set_expiry(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(Py_None, Py_None, arguments[1], [&] {
    const auto level = static_cast<int>(as_number(arguments[0], "level", 1, kLevels - 1, "from 1 to 7"));
    core_of(self).set_expiry(level, as_integer(arguments[1]));
    return none();
  });
}

inline PyObject* evict(PyObject* self, PyObject* count) {
  return guarded([&] {
    return integer(core_of(self).evict(as_number(count, "count", 0, std::numeric_limits<std::int64_t>::max(), "at least 0")));
  });
}

inline PyObject* resize(PyObject* self, PyObject* num_blocks) {
  return guarded([&] {
    constexpr std::int64_t most = std::numeric_limits<BlockId>::max();
    const std::int64_t wanted = as_number(num_blocks, "num_blocks", 2, most, "at least 2 (the null block and one more)");
    return list_of(core_of(self).resize(static_cast<BlockId>(wanted)), as_pair);
  });
}

inline PyObject* flush(PyObject* self, PyObject* name) {
  return guarded([&] {
    std::optional<std::string> wanted;
    if (name != Py_None) wanted = as_name(name);
    const auto result = core_of(self).flush(wanted ? &*wanted : nullptr);
    return Py_BuildValue("(LL)", static_cast<long long>(result.first), static_cast<long long>(result.second));
  });
}

inline PyObject* check(PyObject* self, PyObject*) {
  return guarded([&] {
    core_of(self).check();
    return none();
  });
}

inline PyObject* audit(PyObject* self, PyObject*) {
  return guarded([&] {
    core_of(self).audit();
    return none();
  });
}

// --- figures ---

inline PyObject* counts(PyObject* self, PyObject*) {
  return guarded([&] {
    const Core& core = core_of(self);
    const Pool& pool = core.pool();
    const std::array<std::int64_t, 13> values{
        pool.free_blocks(),
        pool.count(BlockState::kCached),
        pool.count(BlockState::kExpected),
        pool.count(BlockState::kHeld),
        pool.count(BlockState::kPinned),
        pool.count(BlockState::kLoading),
        pool.count(BlockState::kStoring),
        pool.shared_blocks(),
        core.reserved_blocks(),
        core.live_sequences(),
        core.slack_tokens(),
        core.deduplicated_blocks(),
        core.evicted_blocks(),
    };
    return integers(values);
  });
}

inline PyObject* available_blocks(PyObject* self, PyObject* group) {
  return guarded([&] { return integer(core_of(self).available_blocks(as_group(group))); });
}

inline PyObject* group_counts(PyObject* self, PyObject* group) {
  return guarded([&] {
    const Groups::Group& counted = core_of(self).pool().groups().at(as_group(group));
    return integers(std::array{counted.in_use, counted.cached + counted.expected});
  });
}

inline PyObject* highest_used(PyObject* self, PyObject*) { return integer(core_of(self).pool().highest_used()); }

inline PyObject* get_version(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(core_of(self).version()); }
inline PyObject* get_live(PyObject* self, void*) { return integer(core_of(self).live_sequences()); }
inline PyObject* get_ticks(PyObject* self, void*) { return integer(core_of(self).pool().rings().now()); }

// --- what happened ---

inline PyObject* as_run(const std::string& name, BlockId parent, PyObject* blocks, PyObject* tokens) {
  const Owned owned_blocks(blocks), owned_tokens(tokens);
  const Owned before(parent == kNullBlock ? none() : integer(parent)), owned_name(bytes(name));
  return PyTuple_Pack(4, owned_name.get(), before.get(), owned_blocks.get(), owned_tokens.get());
}

inline PyObject* runs(PyObject* self, PyObject*) {
  return guarded([&] {
    Owned list(PyList_New(0));
    const std::size_t size = core_of(self).block_tokens();
    core_of(self).each_indexed([&](const std::string& name, Parent parent, BlockId block, const Token* tokens) {
      const Owned run(as_run(name, std::max(kNullBlock, parent), integers(std::array{block}), integers(std::vector(tokens, tokens + size))));
      if (PyList_Append(list.get(), run.get()) < 0) throw PythonError();
    });
    return list.give();
  });
}

inline PyObject* as_event(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kStored: {
      const Owned run(as_run(*event.name, event.parent, integers(event.blocks), integers(event.tokens)));
      const Owned kind(Py_BuildValue("(s)", "stored"));
      return PySequence_Concat(kind.get(), run.get());
    }
    case Event::Kind::kRemoved:
      return Py_BuildValue("(sN)", "removed", integers(event.blocks));
    case Event::Kind::kCleared:
      return Py_BuildValue("(sN)", "cleared", event.name ? bytes(*event.name) : none());
    case Event::Kind::kMoved:
      return Py_BuildValue("(sN)", "moved", tuple_of(event.moves, as_pair));
  }
  return nullptr;
}

inline PyObject* drain_events(PyObject* self, PyObject*) {
  return guarded([&] { return list_of(core_of(self).journal().drain(), as_event); });
}

inline PyObject* drain_samples(PyObject* self, PyObject*) {
  return guarded([&] {
    return list_of(core_of(self).drain_samples(), [](const Sample& sample) {
      return integers(std::array{static_cast<std::int64_t>(sample.kind), sample.first, sample.second, sample.now});
    });
  });
}

inline PyObject* get_record_events(PyObject* self, void*) { return PyBool_FromLong(core_of(self).journal().is_on()); }

inline int set_record_events(PyObject* self, PyObject* value, void*) {
  const int on = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (on < 0) return -1;
  core_of(self).journal().turn(on == 1);
  return 0;
}

}  // namespace kvcache::python
