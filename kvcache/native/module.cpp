// The Python face of the core: kvcache._native.NativeCore. Arguments are positional;
// kvcache.core.CacheCore documents them.
#include "python.hpp"

#include "module_holders.hpp"
#include "module_pool.hpp"

namespace {

using namespace kvcache;
using namespace kvcache::python;

PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"num_blocks", "block_tokens", "reuse_weight", "protected_blocks", "record_events", "digest_bits", nullptr};
  int num_blocks = 0, block_tokens = 0, reuse_weight = 0, protected_blocks = 0, record_events = 0, digest_bits = 32;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iiii|pi", const_cast<char**>(names), &num_blocks, &block_tokens,
                                   &reuse_weight, &protected_blocks, &record_events, &digest_bits)) {
    return nullptr;
  }
  if (num_blocks < 2 || block_tokens < 1 || reuse_weight < 0 || protected_blocks < 0 || digest_bits < 0 || digest_bits > 32) {
    PyErr_SetString(PyExc_ValueError,
                    "num_blocks must be at least 2, block_tokens at least 1, digest_bits 0 to 32, the others at least 0");
    return nullptr;
  }
  return guarded([&] {
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    Owned self(allocate(type, 0));
    const EvictionRule rule{static_cast<std::uint32_t>(reuse_weight), protected_blocks};
    reinterpret_cast<NativeCore*>(self.get())->core =
        new Core(num_blocks, static_cast<std::size_t>(block_tokens), rule, record_events != 0, digest_bits);
    return self.give();
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<NativeCore*>(self)->core;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyCFunction fast(PyObject* (*method)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method));
}

PyMethodDef methods[] = {
    {"match", fast(match), METH_FASTCALL, nullptr},
    {"partial_match", fast(partial_match), METH_FASTCALL, nullptr},
    {"forgotten_blocks", fast(forgotten_blocks), METH_FASTCALL, nullptr},
    {"begins_elsewhere", fast(begins_elsewhere), METH_FASTCALL, nullptr},
    {"pending_blocks", fast(pending_blocks), METH_FASTCALL, nullptr},
    {"namespace_group", namespace_group, METH_O, nullptr},
    {"is_live", is_live, METH_O, nullptr},
    {"begin", fast(begin), METH_FASTCALL, nullptr},
    {"append", fast(append), METH_FASTCALL, nullptr},
    {"commit", fast(commit), METH_FASTCALL, nullptr},
    {"release", release, METH_O, nullptr},
    {"fork", fast(fork), METH_FASTCALL, nullptr},
    {"block_table", block_table, METH_O, nullptr},
    {"tokens", tokens_of, METH_O, nullptr},
    {"num_tokens", num_tokens, METH_O, nullptr},
    {"computed_tokens", computed_tokens, METH_O, nullptr},
    {"exclusive_blocks", exclusive_blocks, METH_O, nullptr},
    {"largest_holders", largest_holders, METH_O, nullptr},
    {"set_group", fast(set_group), METH_FASTCALL, nullptr},
    {"set_expiry", fast(set_expiry), METH_FASTCALL, nullptr},
    {"evict", evict, METH_O, nullptr},
    {"resize", resize, METH_O, nullptr},
    {"flush", flush, METH_O, nullptr},
    {"check", check, METH_NOARGS, nullptr},
    {"audit", audit, METH_NOARGS, nullptr},
    {"counts", counts, METH_NOARGS, nullptr},
    {"available_blocks", available_blocks, METH_O, nullptr},
    {"group_counts", group_counts, METH_O, nullptr},
    {"highest_used", highest_used, METH_NOARGS, nullptr},
    {"runs", runs, METH_NOARGS, nullptr},
    {"drain_events", drain_events, METH_NOARGS, nullptr},
    {"drain_samples", drain_samples, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef attributes[] = {
    {"version", get_version, nullptr, nullptr, nullptr},
    {"live_sequences", get_live, nullptr, nullptr, nullptr},
    {"ticks", get_ticks, nullptr, nullptr, nullptr},
    {"record_events", get_record_events, set_record_events, nullptr, nullptr},
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
