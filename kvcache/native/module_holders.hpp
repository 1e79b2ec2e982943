// Methods of kvcache._native.NativeCore: lookups, and the life of a holder.
#pragma once

#include "errors.hpp"
#include "life.hpp"
#include "python.hpp"

namespace kvcache::python {

struct NativeCore {
  PyObject_HEAD
  Core* core;
};

inline Core& core_of(PyObject* self) { return *reinterpret_cast<NativeCore*>(self)->core; }

inline bool has(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments given, %zd wanted", count, wanted);
  return false;
}

// --- lookups ---

inline PyObject* match(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded([&] {
    const Core& core = core_of(self);
    const Tokens tokens(arguments[1]);
    const Match found = core.match(as_name(arguments[0]), tokens.span(), tokens.whole_blocks(arguments[2], core.block_tokens()));
    return Py_BuildValue("(LLi)", static_cast<long long>(found.blocks), static_cast<long long>(found.idle_blocks),
                         static_cast<int>(found.end));
  });
}

inline PyObject* partial_match(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded([&] {
    const Tokens tokens(arguments[1]);
    const auto found = core_of(self).partial_match(as_name(arguments[0]), tokens.span(), as_match(core_of(self), arguments[2], tokens));
    return Py_BuildValue("(iL)", static_cast<int>(found.first), static_cast<long long>(found.second));
  });
}

inline PyObject* forgotten_blocks(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 4)) return nullptr;
  return guarded([&] {
    const Core& core = core_of(self);
    const Tokens tokens(arguments[1]);
    const Match found = as_match(core, arguments[2], tokens);
    return integer(core.forgotten_blocks(as_name(arguments[0]), tokens.span(), found, tokens.whole_blocks(arguments[3], core.block_tokens())));
  });
}

inline PyObject* begins_elsewhere(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded([&] {
    const Tokens tokens(arguments[1]);
    const bool has_block = tokens.span().size >= core_of(self).block_tokens();
    return PyBool_FromLong(has_block && core_of(self).begins_elsewhere(as_name(arguments[0]), tokens.span()));
  });
}

inline PyObject* pending_blocks(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded([&] {
    const Core& core = core_of(self);
    const Tokens tokens(arguments[1]);
    return integer(core.pending_blocks(as_name(arguments[0]), tokens.span(), tokens.whole_blocks(arguments[2], core.block_tokens())));
  });
}

inline PyObject* namespace_group(PyObject* self, PyObject* name) {
  return guarded([&] { return integer(core_of(self).namespace_group(as_name(name))); });
}

// --- the life of a holder ---

inline PyObject* is_live(PyObject* self, PyObject* id) {
  return guarded([&] { return PyBool_FromLong(core_of(self).is_live(as_integer(id))); });
}

inline PyObject* begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 9)) return nullptr;
  return guarded(Py_None, arguments[0], nullptr, [&] {
    const Tokens tokens(arguments[2]);
    const Match found = as_match(core_of(self), arguments[4], tokens);
    const auto kind = static_cast<HolderKind>(as_number(arguments[6], "kind", 0, kHolderKinds - 1, "from 0 to 4"));
    const int group = as_group(arguments[7]);
    const auto level = static_cast<int>(as_number(arguments[8], "level", 0, kLevels - 1, "from 0 to 7"));
    const Terms terms{kind, static_cast<BlockClass>(group * kLevels + level), as_bool(arguments[3]), as_bool(arguments[5])};
    core_of(self).begin(as_integer(arguments[0]), as_name(arguments[1]), tokens.span(), found, terms);
    return none();
  });
}

inline PyObject* append(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(arguments[0], Py_None, nullptr, [&] {
    constexpr std::int64_t low = std::numeric_limits<Token>::min(), high = std::numeric_limits<Token>::max();
    const std::int64_t token = as_number(arguments[1], "token_id", low, high, "an int32 number");
    return integer(core_of(self).append(as_integer(arguments[0]), static_cast<Token>(token)));
  });
}

inline PyObject* commit(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(arguments[0], Py_None, arguments[1], [&] {
    core_of(self).commit(as_integer(arguments[0]), as_integer(arguments[1]));
    return none();
  });
}

inline PyObject* release(PyObject* self, PyObject* id) {
  return guarded([&] { return PyBool_FromLong(core_of(self).release(as_integer(id))); });
}

inline PyObject* fork(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(arguments[0], arguments[1], nullptr, [&] {
    const auto copy = core_of(self).fork(as_integer(arguments[0]), as_integer(arguments[1]));
    return copy ? as_pair(*copy) : none();
  });
}

inline PyObject* block_table(PyObject* self, PyObject* id) {
  return guarded(id, Py_None, nullptr, [&] { return bytes(core_of(self).holder(as_integer(id)).table); });
}

inline PyObject* tokens_of(PyObject* self, PyObject* id) {
  return guarded(id, Py_None, nullptr, [&] { return bytes(core_of(self).holder(as_integer(id)).tokens); });
}

inline PyObject* num_tokens(PyObject* self, PyObject* id) {
  return guarded(id, Py_None, nullptr, [&] { return PyLong_FromSize_t(core_of(self).holder(as_integer(id)).tokens.size()); });
}

inline PyObject* computed_tokens(PyObject* self, PyObject* id) {
  return guarded(id, Py_None, nullptr, [&] { return PyLong_FromSize_t(core_of(self).holder(as_integer(id)).computed_tokens); });
}

inline PyObject* exclusive_blocks(PyObject* self, PyObject* id) {
  return guarded(id, Py_None, nullptr, [&] { return integer(core_of(self).exclusive_blocks(as_integer(id))); });
}

inline PyObject* largest_holders(PyObject* self, PyObject* wanted) {
  return guarded([&] {
    return integers(core_of(self).largest_holders(static_cast<std::size_t>(std::max<std::int64_t>(0, as_integer(wanted)))));
  });
}

}  // namespace kvcache::python
