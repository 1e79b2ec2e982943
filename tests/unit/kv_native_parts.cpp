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

// (capacity, [id to insert, or -1 to take the lowest]) -> what was taken, then the size, and the
// highest number that is no member
PyObject* free_set(PyObject*, PyObject* arguments) {
  return guarded([&] {
    long long capacity = 0;
    PyObject* steps = nullptr;
    if (!PyArg_ParseTuple(arguments, "LO", &capacity, &steps)) throw PythonError();
    FreeSet set(static_cast<std::size_t>(capacity));
    Owned taken(PyList_New(0));
    each(steps, [&](PyObject* step) {
      const auto id = static_cast<BlockId>(as_integer(step));
      if (id >= 0) return set.insert(id);
      push(taken, set.lowest());
      set.remove(set.lowest());
    });
    push(taken, static_cast<std::int64_t>(set.size()));
    push(taken, set.highest_absent());
    return taken.give();
  });
}

// [digest to add, or -digest to subtract] -> its count after each step, then the size
PyObject* digest_counts(PyObject*, PyObject* steps) {
  return guarded([&] {
    DigestCounts counts;
    Owned seen(PyList_New(0));
    each(steps, [&](PyObject* step) {
      const std::int64_t value = as_integer(step);
      const auto digest = static_cast<Digest>(value < 0 ? -value : value);
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
  return guarded([&] {
    long long capacity = 0;
    PyObject *remembered = nullptr, *wanted = nullptr;
    if (!PyArg_ParseTuple(arguments, "LOO", &capacity, &remembered, &wanted)) throw PythonError();
    EvictionMemory memory(static_cast<std::size_t>(capacity));
    each(remembered, [&](PyObject* digest) { memory.remember(static_cast<Digest>(as_integer(digest))); });
    Owned found(PyList_New(0));
    each(wanted, [&](PyObject* digest) { push(found, memory.contains(static_cast<Digest>(as_integer(digest)))); });
    return found.give();
  });
}

// (num_blocks, [(operation, block, actor, kind)]) -> the blocks in each state, those that are
// shared, and the order of eviction
PyObject* pool(PyObject*, PyObject* arguments) {
  return guarded([&] {
    int num_blocks = 0;
    PyObject* steps = nullptr;
    if (!PyArg_ParseTuple(arguments, "iO", &num_blocks, &steps)) throw PythonError();
    Pool books(num_blocks, {2, 1});
    each(steps, [&](PyObject* step) {
      const char* name = nullptr;
      int block = 0, number = 0;
      long long actor = 0;
      if (!PyArg_ParseTuple(step, "siLi", &name, &block, &actor, &number)) throw PythonError();
      const std::string operation = name;
      const auto kind = static_cast<HolderKind>(number);
      if (operation == "allocate") books.allocate(actor, kind, 0);
      if (operation == "hold") books.hold(block, actor, kind, 0);
      if (operation == "release") books.release(block, actor, kind);
      if (operation == "publish") books.publish(block, actor);
      if (operation == "unpublish") books.unpublish(block, kEviction);
      books.audit();
    });
    Owned counts(PyDict_New());
    for (int at = 0; at < kBlockStates; ++at) {
      const auto state = static_cast<BlockState>(at);
      const Owned count(integer(state == BlockState::kFree ? books.free_blocks() : books.count(state)));
      if (PyDict_SetItemString(counts.get(), as_text(state), count.get()) < 0) throw PythonError();
    }
    const Owned order(PyList_New(0));
    books.rings().each([&](BlockId block) { push(order, block); });
    return Py_BuildValue("(OLO)", counts.get(), static_cast<long long>(books.shared_blocks()), order.get());
  });
}

// (horizon, [block to hold and release, or 0 for a tick]) -> [(now, [(block, released at)])] after
// each step, in the order of eviction
PyObject* clock_of_rings(PyObject*, PyObject* arguments) {
  return guarded([&] {
    int horizon = 0;
    PyObject* steps = nullptr;
    if (!PyArg_ParseTuple(arguments, "iO", &horizon, &steps)) throw PythonError();
    Pool books(6, {2, 1}, static_cast<std::uint32_t>(horizon));
    for (BlockId block = 1; block < 6; ++block) books.publish(books.allocate(1, HolderKind::kSequence, 0), 1);
    for (BlockId block = 1; block < 6; ++block) books.release(block, 1, HolderKind::kSequence);
    Owned seen(PyList_New(0));
    each(steps, [&](PyObject* step) {
      const auto block = static_cast<BlockId>(as_integer(step));
      if (block == 0) {
        books.rings().tick();
      } else {
        books.hold(block, 1, HolderKind::kSequence, 0);
        books.release(block, 1, HolderKind::kSequence);
      }
      books.audit();
      const Owned order(PyList_New(0));
      books.rings().each([&](BlockId cached) {
        const Owned entry(Py_BuildValue("(iL)", static_cast<int>(cached), static_cast<long long>(books.rings().released_at(cached))));
        if (PyList_Append(order.get(), entry.get()) < 0) throw PythonError();
      });
      const Owned state(Py_BuildValue("(LO)", static_cast<long long>(books.rings().now()), order.get()));
      if (PyList_Append(seen.get(), state.get()) < 0) throw PythonError();
    });
    return seen.give();
  });
}

PyMethodDef parts[] = {
    {"free_set", free_set, METH_VARARGS, nullptr},
    {"digest_counts", digest_counts, METH_O, nullptr},
    {"eviction_memory", eviction_memory, METH_VARARGS, nullptr},
    {"pool", pool, METH_VARARGS, nullptr},
    {"clock_of_rings", clock_of_rings, METH_VARARGS, nullptr},
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
