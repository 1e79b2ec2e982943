// Python objects in C++: who owns them, what arguments say, and answers made of numbers. Limited
// API, so that one build serves every later Python.
//
// Written against the C API: a binding library would be one more dependency of the build for
// some functions, and cost more a call than most of them take.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "core.hpp"

namespace kvcache::python {

// A Python exception is set already.
struct PythonError {};

// Takes part in the rule "one owner" for a new reference.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {
    if (object_ == nullptr) throw PythonError();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* give() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// --- answers ---

inline PyObject* none() { return Py_NewRef(Py_None); }
inline PyObject* integer(std::int64_t value) { return PyLong_FromLongLong(value); }

// What `make` answers for each of some values, as a tuple.
template <typename Values, typename Make>
PyObject* tuple_of(const Values& values, Make make) {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  Py_ssize_t at = 0;
  for (const auto& value : values) PyTuple_SetItem(tuple.get(), at++, Owned(make(value)).give());
  return tuple.give();
}

template <typename Values>
PyObject* integers(const Values& values) {
  return tuple_of(values, [](std::int64_t value) { return integer(value); });
}

template <typename Values, typename Make>
PyObject* list_of(const Values& values, Make make) {
  Owned list(PyList_New(static_cast<Py_ssize_t>(values.size())));
  Py_ssize_t at = 0;
  for (const auto& value : values) PyList_SetItem(list.get(), at++, Owned(make(value)).give());
  return list.give();
}

inline PyObject* as_pair(const std::pair<BlockId, BlockId>& pair) {
  return Py_BuildValue("(ii)", static_cast<int>(pair.first), static_cast<int>(pair.second));
}

inline PyObject* bytes(const std::string& text) {
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

// A copy: a view would dangle when the vector moves.
template <typename Value>
PyObject* bytes(const std::vector<Value>& values) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                   static_cast<Py_ssize_t>(values.size() * sizeof(Value)));
}

// --- arguments ---

// Numbers beyond 64 bits become the nearest one within; no id or count is there.
inline std::int64_t as_integer(PyObject* object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow > 0) return std::numeric_limits<std::int64_t>::max();
  if (overflow < 0) return std::numeric_limits<std::int64_t>::min();
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

inline bool as_bool(PyObject* object) {
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) throw PythonError();
  return truth == 1;
}

inline std::string as_name(PyObject* object) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object, &data, &size) < 0) throw PythonError();
  return {data, static_cast<std::size_t>(size)};
}

// A borrowed contiguous int32 array.
class Tokens {
 public:
  explicit Tokens(PyObject* array) {
    if (PyObject_GetBuffer(array, &buffer_, PyBUF_SIMPLE) < 0) throw PythonError();
  }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  ~Tokens() { PyBuffer_Release(&buffer_); }

  TokenSpan span() const {
    return {static_cast<const Token*>(buffer_.buf), static_cast<std::size_t>(buffer_.len) / sizeof(Token)};
  }

  // `wanted` blocks, or as many as there are.
  std::size_t whole_blocks(PyObject* wanted, std::size_t block_tokens) const {
    const auto there = static_cast<std::int64_t>(span().size / block_tokens);
    return static_cast<std::size_t>(std::clamp<std::int64_t>(as_integer(wanted), 0, there));
  }

 private:
  Py_buffer buffer_;
};

inline Match as_match(const Core& core, PyObject* object, const Tokens& tokens) {
  long long blocks = 0, idle = 0, end = 0;
  if (!PyArg_ParseTuple(object, "LLL", &blocks, &idle, &end)) throw PythonError();
  const auto most = static_cast<long long>(tokens.span().size / core.block_tokens());
  if (blocks < 0 || blocks > most || idle < 0 || idle > blocks || end < 0 || end >= core.num_blocks()) {
    throw ConservationError("a match names blocks that cannot be");
  }
  return {blocks, idle, static_cast<BlockId>(end)};
}

}  // namespace kvcache::python
