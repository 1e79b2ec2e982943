// The Python face of the core: kvcache._native.NativeCore. Limited API, so that one build serves
// every later Python. Arguments are positional; kvcache.core.CacheCore documents them.
//
// Written against the C API: a binding library would be one more dependency of the build for
// twenty functions, and cost more a call than most of them take.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits>
#include <new>
#include <optional>

#include "core.hpp"

namespace {

using kvcache::BlockId;
using kvcache::Core;
using kvcache::SequenceId;
using kvcache::Token;
using kvcache::TokenSpan;

struct NativeCore {
  PyObject_HEAD
  Core* core;
  BlockId num_blocks;
  std::size_t block_tokens;
};

// A Python exception is set already.
struct PythonError {};

PyObject* errors_module = nullptr;

// --- arguments ---

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

[[noreturn]] void raise(const char* name, PyObject* arguments, PyObject* keywords = nullptr) {
  const Owned owned(arguments);
  const Owned kind(PyObject_GetAttrString(errors_module, name));
  const Owned error(PyObject_Call(kind.get(), owned.get(), keywords));
  PyErr_SetObject(kind.get(), error.get());
  throw PythonError();
}

// Numbers beyond 64 bits become the nearest one within; no id or count is there.
std::int64_t as_integer(PyObject* object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow > 0) return std::numeric_limits<std::int64_t>::max();
  if (overflow < 0) return std::numeric_limits<std::int64_t>::min();
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

bool as_bool(PyObject* object) {
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) throw PythonError();
  return truth == 1;
}

std::string as_name(PyObject* object) {
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

kvcache::Match as_match(const NativeCore* self, PyObject* object, const Tokens& tokens) {
  long long blocks = 0, evictable = 0, end = 0;
  if (!PyArg_ParseTuple(object, "LLL", &blocks, &evictable, &end)) throw PythonError();
  const auto most = static_cast<long long>(tokens.span().size / self->block_tokens);
  if (blocks < 0 || blocks > most || evictable < 0 || evictable > blocks || end < 0 || end >= self->num_blocks) {
    raise("ConservationError", Py_BuildValue("(s)", "a match names blocks that cannot be"));
  }
  return {blocks, evictable, static_cast<BlockId>(end)};
}

// --- errors ---

Owned as_actor(SequenceId actor) {
  if (actor == kvcache::kEviction) return Owned(PyUnicode_FromString("eviction"));
  if (actor == kvcache::kFlush) return Owned(PyUnicode_FromString("flush"));
  return Owned(PyUnicode_FromFormat("sequence %lld", static_cast<long long>(actor)));
}

const char* as_text(kvcache::Operation operation) {
  static constexpr const char* names[] = {"allocate", "hold", "release", "publish", "unpublish"};
  return names[static_cast<int>(operation)];
}

[[noreturn]] void raise_illegal_transition(const kvcache::IllegalTransitionError& error) {
  const Owned kind(PyObject_GetAttrString(errors_module, "Transition"));
  const Owned history(PyTuple_New(static_cast<Py_ssize_t>(error.history.size())));
  for (std::size_t at = 0; at < error.history.size(); ++at) {
    const kvcache::Transition& past = error.history[at];
    const Owned actor = as_actor(past.actor);
    Owned entry(PyObject_CallFunction(kind.get(), "KsO", static_cast<unsigned long long>(past.serial),
                                      as_text(past.operation), actor.get()));
    PyTuple_SetItem(history.get(), static_cast<Py_ssize_t>(at), entry.give());
  }
  const Owned actor = as_actor(error.refused.actor);
  const Owned facts(Py_BuildValue("{si,ss,ss,sO,ss,sO,sO}", "block", static_cast<int>(error.refused.block), "state",
                                  error.state, "operation", as_text(error.refused.operation), "actor", actor.get(),
                                  "reason", error.reason, "holder", Py_None, "history", history.get()));
  raise("IllegalTransitionError", PyTuple_New(0), facts.get());
}

// Runs `body` and turns what it throws into a Python exception. `id` is the Python object that
// named the sequence, `value` the one that an argument error complains about.
template <typename Body>
PyObject* guarded(PyObject* id, PyObject* value, Body body) noexcept {
  try {
    try {
      return body();
    } catch (const kvcache::UnknownSequenceError&) {
      raise("UnknownSequenceError", Py_BuildValue("(O)", id));
    } catch (const kvcache::DuplicateSequenceError&) {
      raise("DuplicateSequenceError", Py_BuildValue("(O)", id));
    } catch (const kvcache::InvalidArgumentError& error) {
      raise("InvalidArgumentError", Py_BuildValue("(sOs)", error.field, value, error.limit.c_str()));
    } catch (const kvcache::OutOfBlocksError& error) {
      raise("OutOfBlocksError", Py_BuildValue("(LL)", static_cast<long long>(error.wanted_blocks),
                                              static_cast<long long>(error.free_blocks)));
    } catch (const kvcache::IllegalTransitionError& error) {
      raise_illegal_transition(error);
    } catch (const kvcache::ConservationError& error) {
      raise("ConservationError", Py_BuildValue("(s)", error.what()));
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory();
    }
  } catch (const PythonError&) {
    return nullptr;
  }
}

bool has(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments given, %zd wanted", count, wanted);
  return false;
}

// --- methods ---

NativeCore* native(PyObject* self) { return reinterpret_cast<NativeCore*>(self); }

PyObject* integer(std::int64_t value) { return PyLong_FromLongLong(value); }

PyObject* match(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded(nullptr, nullptr, [&] {
    const Tokens tokens(arguments[1]);
    const auto found = native(self)->core->match(as_name(arguments[0]), tokens.span(),
                                                 tokens.whole_blocks(arguments[2], native(self)->block_tokens));
    return Py_BuildValue("(LLi)", static_cast<long long>(found.blocks), static_cast<long long>(found.evictable_blocks),
                         static_cast<int>(found.end));
  });
}

PyObject* forgotten_blocks(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 4)) return nullptr;
  return guarded(nullptr, nullptr, [&] {
    const Tokens tokens(arguments[1]);
    const auto found = as_match(native(self), arguments[2], tokens);
    return integer(native(self)->core->forgotten_blocks(
        as_name(arguments[0]), tokens.span(), found, tokens.whole_blocks(arguments[3], native(self)->block_tokens)));
  });
}

PyObject* begins_elsewhere(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(nullptr, nullptr, [&] {
    const Tokens tokens(arguments[1]);
    const bool has_block = tokens.span().size >= native(self)->block_tokens;
    return PyBool_FromLong(has_block && native(self)->core->begins_elsewhere(as_name(arguments[0]), tokens.span()));
  });
}

PyObject* pending_blocks(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 3)) return nullptr;
  return guarded(nullptr, nullptr, [&] {
    const Tokens tokens(arguments[1]);
    return integer(native(self)->core->pending_blocks(as_name(arguments[0]), tokens.span(),
                                                      tokens.whole_blocks(arguments[2], native(self)->block_tokens)));
  });
}

PyObject* is_live(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] { return PyBool_FromLong(native(self)->core->is_live(as_integer(id))); });
}

PyObject* begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 6)) return nullptr;
  return guarded(arguments[0], nullptr, [&] {
    const Tokens tokens(arguments[2]);
    const auto found = as_match(native(self), arguments[4], tokens);
    native(self)->core->begin(as_integer(arguments[0]), as_name(arguments[1]), tokens.span(), as_bool(arguments[3]), found,
                               as_bool(arguments[5]));
    return Py_NewRef(Py_None);
  });
}

PyObject* append(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(arguments[0], arguments[1], [&] {
    const std::int64_t token = as_integer(arguments[1]);
    if (token != static_cast<Token>(token)) throw kvcache::InvalidArgumentError("token_id", "an int32 number");
    return integer(native(self)->core->append(as_integer(arguments[0]), static_cast<Token>(token)));
  });
}

PyObject* commit(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  return guarded(arguments[0], arguments[1], [&] {
    native(self)->core->commit(as_integer(arguments[0]), as_integer(arguments[1]));
    return Py_NewRef(Py_None);
  });
}

PyObject* release(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] { return PyBool_FromLong(native(self)->core->release(as_integer(id))); });
}

PyObject* flush(PyObject* self, PyObject* name) {
  return guarded(nullptr, nullptr, [&] {
    std::optional<std::string> wanted;
    if (name != Py_None) wanted = as_name(name);
    const auto result = native(self)->core->flush(wanted ? &*wanted : nullptr);
    return Py_BuildValue("(LL)", static_cast<long long>(result.first), static_cast<long long>(result.second));
  });
}

// A copy: a view would dangle when the table moves.
PyObject* block_table(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] {
    const auto& table = native(self)->core->block_table(as_integer(id));
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(table.data()),
                                     static_cast<Py_ssize_t>(table.size() * sizeof(BlockId)));
  });
}

PyObject* num_tokens(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] { return integer(native(self)->core->num_tokens(as_integer(id))); });
}

PyObject* computed_tokens(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] { return integer(native(self)->core->computed_tokens(as_integer(id))); });
}

PyObject* exclusive_blocks(PyObject* self, PyObject* id) {
  return guarded(id, nullptr, [&] { return integer(native(self)->core->exclusive_blocks(as_integer(id))); });
}

PyObject* largest_holders(PyObject* self, PyObject* wanted) {
  return guarded(nullptr, nullptr, [&] {
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(0, as_integer(wanted)));
    const auto ids = native(self)->core->largest_holders(most);
    Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(ids.size())));
    for (std::size_t at = 0; at < ids.size(); ++at) {
      PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(at), Owned(integer(ids[at])).give());
    }
    return tuple.give();
  });
}

PyObject* counts(PyObject* self, PyObject*) {
  const kvcache::Counts now = native(self)->core->counts();
  return Py_BuildValue("(LLLLLLLL)", static_cast<long long>(now.free), static_cast<long long>(now.cached),
                       static_cast<long long>(now.held), static_cast<long long>(now.shared),
                       static_cast<long long>(now.reserved), static_cast<long long>(now.live_sequences),
                       static_cast<long long>(now.deduplicated), static_cast<long long>(now.evicted));
}

PyObject* runs(PyObject* self, PyObject*) {
  return guarded(nullptr, nullptr, [&] {
    Owned list(PyList_New(0));
    native(self)->core->each_indexed([&](const std::string& name, kvcache::Parent parent, BlockId block, const Token* tokens) {
      Owned ids(PyTuple_New(static_cast<Py_ssize_t>(native(self)->block_tokens)));
      for (std::size_t at = 0; at < native(self)->block_tokens; ++at) {
        PyTuple_SetItem(ids.get(), static_cast<Py_ssize_t>(at), Owned(integer(tokens[at])).give());
      }
      const Owned before(kvcache::is_root(parent) ? Py_NewRef(Py_None) : integer(parent));
      const Owned run(Py_BuildValue("(y#O(i)O)", name.data(), static_cast<Py_ssize_t>(name.size()), before.get(),
                                    static_cast<int>(block), ids.get()));
      if (PyList_Append(list.get(), run.get()) < 0) throw PythonError();
    });
    return list.give();
  });
}

PyObject* check(PyObject* self, PyObject*) {
  return guarded(nullptr, nullptr, [&] {
    native(self)->core->check();
    return Py_NewRef(Py_None);
  });
}

PyObject* audit(PyObject* self, PyObject*) {
  return guarded(nullptr, nullptr, [&] {
    native(self)->core->audit();
    return Py_NewRef(Py_None);
  });
}

PyObject* get_version(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(native(self)->core->version()); }
PyObject* get_available(PyObject* self, void*) { return integer(native(self)->core->available_blocks()); }
PyObject* get_live(PyObject* self, void*) { return integer(native(self)->core->live_sequences()); }

// --- the type ---

PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"num_blocks", "block_tokens", "reuse_weight", "protected_blocks", "digest_bits", nullptr};
  int num_blocks = 0, block_tokens = 0, reuse_weight = 0, protected_blocks = 0, digest_bits = 32;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iiii|i", const_cast<char**>(names), &num_blocks,
                                   &block_tokens, &reuse_weight, &protected_blocks, &digest_bits)) {
    return nullptr;
  }
  if (num_blocks < 2 || block_tokens < 1 || reuse_weight < 0 || protected_blocks < 0 || digest_bits < 0 || digest_bits > 32) {
    PyErr_SetString(PyExc_ValueError,
                    "num_blocks must be at least 2, block_tokens at least 1, digest_bits 0 to 32, the others at least 0");
    return nullptr;
  }
  const kvcache::EvictionRule rule{static_cast<std::uint32_t>(reuse_weight), protected_blocks};
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (self == nullptr) return nullptr;
  native(self)->num_blocks = num_blocks;
  native(self)->block_tokens = static_cast<std::size_t>(block_tokens);
  try {
    native(self)->core = new Core(num_blocks, native(self)->block_tokens, rule, digest_bits);
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  } catch (const std::length_error&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete native(self)->core;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyCFunction fast(PyObject* (*method)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method));
}

PyMethodDef methods[] = {
    {"match", fast(match), METH_FASTCALL, nullptr},
    {"forgotten_blocks", fast(forgotten_blocks), METH_FASTCALL, nullptr},
    {"begins_elsewhere", fast(begins_elsewhere), METH_FASTCALL, nullptr},
    {"pending_blocks", fast(pending_blocks), METH_FASTCALL, nullptr},
    {"is_live", is_live, METH_O, nullptr},
    {"begin", fast(begin), METH_FASTCALL, nullptr},
    {"append", fast(append), METH_FASTCALL, nullptr},
    {"commit", fast(commit), METH_FASTCALL, nullptr},
    {"release", release, METH_O, nullptr},
    {"flush", flush, METH_O, nullptr},
    {"block_table", block_table, METH_O, nullptr},
    {"num_tokens", num_tokens, METH_O, nullptr},
    {"computed_tokens", computed_tokens, METH_O, nullptr},
    {"exclusive_blocks", exclusive_blocks, METH_O, nullptr},
    {"largest_holders", largest_holders, METH_O, nullptr},
    {"counts", counts, METH_NOARGS, nullptr},
    {"runs", runs, METH_NOARGS, nullptr},
    {"check", check, METH_NOARGS, nullptr},
    {"audit", audit, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef attributes[] = {
    {"version", get_version, nullptr, nullptr, nullptr},
    {"available_blocks", get_available, nullptr, nullptr, nullptr},
    {"live_sequences", get_live, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, nullptr},
};

PyType_Spec spec = {"kvcache._native.NativeCore", sizeof(NativeCore), 0, Py_TPFLAGS_DEFAULT, slots};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The native core of kvcache.", -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  try {
    Owned module(PyModule_Create(&definition));
    Owned errors(PyImport_ImportModule("kvcache.errors"));
    const Owned type(PyType_FromSpec(&spec));
    if (PyModule_AddObjectRef(module.get(), "NativeCore", type.get()) < 0) return nullptr;
    errors_module = errors.give();
    return module.give();
  } catch (const PythonError&) {
    return nullptr;
  }
}
