// What the core throws, as the exceptions of kvcache.errors.
#pragma once

#include <new>
#include <stdexcept>

#include "python.hpp"

namespace kvcache::python {

inline PyObject* errors_module = nullptr;

// An argument is out of its domain; `value` is the Python object that says so.
struct RefusedArgument {
  const char* field;
  PyObject* value;
  const char* limit;
};

[[noreturn]] inline void raise(const char* name, PyObject* arguments, PyObject* keywords = nullptr) {
  const Owned owned(arguments);
  const Owned kind(PyObject_GetAttrString(errors_module, name));
  const Owned error(PyObject_Call(kind.get(), owned.get(), keywords));
  PyErr_SetObject(kind.get(), error.get());
  throw PythonError();
}

// The number, if it is one of `low` .. `high`.
inline std::int64_t as_number(PyObject* object, const char* field, std::int64_t low, std::int64_t high, const char* limit) {
  const std::int64_t value = as_integer(object);
  if (value < low || value > high) throw RefusedArgument{field, object, limit};
  return value;
}

inline int as_group(PyObject* object) { return static_cast<int>(as_number(object, "group", 0, kGroups - 1, "from 0 to 31")); }

inline Owned as_actor(HolderId actor) {
  if (actor == kEviction) return Owned(PyUnicode_FromString("eviction"));
  if (actor == kFlush) return Owned(PyUnicode_FromString("flush"));
  return Owned(PyUnicode_FromFormat("sequence %lld", static_cast<long long>(actor)));
}

inline const char* as_text(Operation operation) {
  static constexpr const char* names[] = {"allocate", "hold", "release", "publish", "unpublish"};
  return names[static_cast<int>(operation)];
}

inline const char* as_text(BlockState state) {
  static constexpr const char* names[] = {"NULL", "FREE", "CACHED", "EXPECTED", "PINNED", "STORING", "LOADING", "HELD"};
  return names[static_cast<int>(state)];
}

[[noreturn]] inline void raise_illegal_transition(const IllegalTransitionError& error) {
  const Owned kind(PyObject_GetAttrString(errors_module, "Transition"));
  const Owned history(tuple_of(error.history, [&](const Transition& past) {
    const Owned actor = as_actor(past.actor);
    return PyObject_CallFunction(kind.get(), "KsO", static_cast<unsigned long long>(past.serial), as_text(past.operation), actor.get());
  }));
  const Owned actor = as_actor(error.refused.actor);
  const Owned facts(Py_BuildValue("{si,ss,ss,sO,ss,sO,sO}", "block", static_cast<int>(error.refused.block), "state",
                                  as_text(error.state), "operation", as_text(error.refused.operation), "actor", actor.get(),
                                  "reason", error.reason, "holder", Py_None, "history", history.get()));
  raise("IllegalTransitionError", PyTuple_New(0), facts.get());
}

// Runs `body` and turns what it throws into a Python exception. `unknown` and `duplicate` are the
// Python objects that named a sequence; `value` is the one that an argument error complains about,
// if it came from outside.
template <typename Body>
PyObject* guarded(PyObject* unknown, PyObject* duplicate, PyObject* value, Body body) noexcept {
  try {
    try {
      return body();
    } catch (const UnknownSequenceError&) {
      raise("UnknownSequenceError", Py_BuildValue("(O)", unknown));
    } catch (const DuplicateSequenceError&) {
      raise("DuplicateSequenceError", Py_BuildValue("(O)", duplicate));
    } catch (const RefusedArgument& error) {
      raise("InvalidArgumentError", Py_BuildValue("(sOs)", error.field, error.value, error.limit));
    } catch (const InvalidArgumentError& error) {
      const Owned facts(value != nullptr ? Py_NewRef(value) : integer(error.value));
      raise("InvalidArgumentError", Py_BuildValue("(sOs)", error.field, facts.get(), error.limit.c_str()));
    } catch (const OutOfBlocksError& error) {
      raise("OutOfBlocksError", Py_BuildValue("(LL)", static_cast<long long>(error.wanted_blocks),
                                              static_cast<long long>(error.free_blocks)));
    } catch (const IllegalTransitionError& error) {
      raise_illegal_transition(error);
    } catch (const ConservationError& error) {
      raise("ConservationError", Py_BuildValue("(s)", error.what()));
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory();
    } catch (const std::length_error&) {
      return PyErr_NoMemory();
    }
  } catch (const PythonError&) {
    return nullptr;
  }
}

template <typename Body>
PyObject* guarded(Body body) noexcept { return guarded(Py_None, Py_None, nullptr, body); }

}  // namespace kvcache::python
