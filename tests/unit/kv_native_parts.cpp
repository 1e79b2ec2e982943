// Gives Python the parts of the native core one by one, for test_kv_native_parts.py.
// Not part of the package; the module of the package is compiled in, for its conversions.
#include "../../kvcache/native/module.cpp"

namespace {

template <typename Visit>
void each(PyObject* list, Visit visit) {
  for (Py_ssize_t at = 0; at < PyList_Size(list); ++at) visit(PyList_GetItem(list, at));
}

void push(const Owned& list, std::int64_t value) {
  if (PyList_Append(list.get(), Owned(integer(value)).get()) < 0) throw PythonError();
}

// (capacity, [id to insert, or -1 to pop]) -> what was popped, then the size
PyObject* free_set(PyObject*, PyObject* arguments) {
  return guarded(nullptr, nullptr, [&] {
    long long capacity = 0;
    PyObject* steps = nullptr;
    if (!PyArg_ParseTuple(arguments, "LO", &capacity, &steps)) throw PythonError();
    kvcache::FreeSet set(static_cast<std::size_t>(capacity));
    Owned popped(PyList_New(0));
    each(steps, [&](PyObject* step) {
      const auto id = static_cast<BlockId>(as_integer(step));
      if (id < 0) return push(popped, set.pop_lowest());
      set.insert(id);
    });
    push(popped, static_cast<std::int64_t>(set.size()));
    return popped.give();
  });
}

// [digest to add, or -digest to subtract] -> its count after each step, then the size
PyObject* digest_counts(PyObject*, PyObject* steps) {
  return guarded(nullptr, nullptr, [&] {
    kvcache::DigestCounts counts;
    Owned seen(PyList_New(0));
    each(steps, [&](PyObject* step) {
      const std::int64_t value = as_integer(step);
      const auto digest = static_cast<kvcache::Digest>(value < 0 ? -value : value);
      if (value < 0) {
        counts.subtract(digest);
      } else {
        counts.add(digest);
      }
      push(seen, counts.count(digest));
    });
    push(seen, static_cast<std::int64_t>(counts.size()));
    return seen.give();
  });
}

// (capacity, [digest to remember], [digest to look for]) -> 1 for each that is found
PyObject* eviction_memory(PyObject*, PyObject* arguments) {
  return guarded(nullptr, nullptr, [&] {
    long long capacity = 0;
    PyObject *remembered = nullptr, *wanted = nullptr;
    if (!PyArg_ParseTuple(arguments, "LOO", &capacity, &remembered, &wanted)) throw PythonError();
    kvcache::EvictionMemory memory(static_cast<std::size_t>(capacity));
    each(remembered, [&](PyObject* digest) { memory.remember(static_cast<kvcache::Digest>(as_integer(digest))); });
    Owned found(PyList_New(0));
    each(wanted, [&](PyObject* digest) { push(found, memory.contains(static_cast<kvcache::Digest>(as_integer(digest)))); });
    return found.give();
  });
}

// (num_blocks, [(operation, block, actor)]) -> [free, cached, held, shared, the order of eviction]
PyObject* pool(PyObject*, PyObject* arguments) {
  return guarded(nullptr, nullptr, [&] {
    int num_blocks = 0;
    PyObject* steps = nullptr;
    if (!PyArg_ParseTuple(arguments, "iO", &num_blocks, &steps)) throw PythonError();
    kvcache::Pool books(num_blocks, {2, 1});
    each(steps, [&](PyObject* step) {
      const char* name = nullptr;
      int block = 0;
      long long actor = 0;
      if (!PyArg_ParseTuple(step, "siL", &name, &block, &actor)) throw PythonError();
      const std::string operation = name;
      if (operation == "allocate") books.allocate(actor);
      if (operation == "hold") books.hold(block, actor);
      if (operation == "release") books.release(block, actor);
      if (operation == "publish") books.publish(block, actor);
      if (operation == "unpublish") books.unpublish(block, kvcache::kEviction);
      books.audit();
    });
    Owned seen(PyList_New(0));
    push(seen, books.free_blocks());
    push(seen, books.cached_blocks());
    push(seen, books.held_blocks());
    push(seen, books.shared_blocks());
    books.each_cached([&](BlockId block) { push(seen, block); });
    return seen.give();
  });
}

PyMethodDef parts[] = {
    {"free_set", free_set, METH_VARARGS, nullptr},
    {"digest_counts", digest_counts, METH_O, nullptr},
    {"eviction_memory", eviction_memory, METH_VARARGS, nullptr},
    {"pool", pool, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef parts_definition = {
    PyModuleDef_HEAD_INIT, "kv_native_parts", nullptr, -1, parts, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_kv_native_parts() {
  PyObject* core = PyInit__native();  // looks up kvcache.errors
  if (core == nullptr) return nullptr;
  Py_DECREF(core);
  return PyModule_Create(&parts_definition);
}
