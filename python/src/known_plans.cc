// Which plan a call of the same layer has used before, found by the very objects that the call gave.
#include "known_plans.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

/// What a weak reference refers to, which nothing else may hold; null where it is gone.
PyObject* referent(PyObject* reference) {
  PyObject* const found = PyObject_CallNoArgs(reference);
  Py_XDECREF(found);                          // who asks holds what it compares with
  return found == Py_None ? nullptr : found;  // its sign of what is gone, which arguments may be too
}

/// Whether `b` means to a call what is known as `a`: the object that a weak reference stands for, one object,
/// equal texts, integers or bits of a float of the same type (True is not 1), or dictionaries of such. Not so
/// may still be equal: then the call is checked again.
bool same(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (PyWeakref_CheckRefExact(a)) return referent(a) == b;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double values[] = {PyFloat_AsDouble(a), PyFloat_AsDouble(b)};
    return std::memcmp(&values[0], &values[1], sizeof(double)) == 0;
  }
  if (PyUnicode_CheckExact(a) || PyLong_CheckExact(a)) return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  if (!PyDict_CheckExact(a) || PyDict_Size(a) != PyDict_Size(b)) return false;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(a, &at, &key, &value) != 0) {
    PyObject* const other = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(b, key) : nullptr;
    if (other == nullptr || PyDict_CheckExact(value) || !same(value, other)) return false;
  }
  return true;
}

class KnownPlans {
 public:
  explicit KnownPlans(size_t most) : most_(most) {}

  nb::object find(const nb::tuple& stated) {
    // Layers come in turn, so the one after the last found comes first.
    for (size_t i = 0; i < entries_.size(); ++i) {
      const size_t at = (next_ + i) % entries_.size();
      if (!equal(entries_[at].stated, stated)) continue;
      next_ = (at + 1) % entries_.size();
      entries_[at].last_use = ++uses_;
      return entries_[at].plan;
    }
    return nb::none();
  }

  void add(nb::tuple stated, nb::object plan) {
    // A call with arrays that are not read in place was planned the long way again.
    for (const Entry& known : entries_) {
      if (known.plan.is(plan) && equal(known.stated, stated)) return;
    }
    Entry entry{std::move(stated), std::move(plan), ++uses_};
    if (entries_.size() < most_) return entries_.push_back(std::move(entry));
    const auto unused =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
    std::swap(*unused, entry);  // what it held ends its life after the entry is whole
  }

  void forget(nb::handle plan) {
    std::vector<Entry> kept, gone;
    for (Entry& entry : entries_) (entry.plan.is(plan) ? gone : kept).push_back(std::move(entry));
    entries_ = std::move(kept);
    next_ = 0;
  }

  void clear() { std::exchange(entries_, {}); }

 private:
  struct Entry {
    nb::tuple stated;
    nb::object plan;
    int64_t last_use = 0;
  };

  static bool equal(const nb::tuple& a, const nb::tuple& b) {
    const size_t count = a.size();
    if (count != b.size()) return false;
    for (size_t i = 0; i < count; ++i) {
      if (!same(nb::handle(a[i]).ptr(), nb::handle(b[i]).ptr())) return false;
    }
    return true;
  }

  size_t most_, next_ = 0;
  int64_t uses_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace

void bind_known_plans(nb::module_& module) {
  nb::class_<KnownPlans>(
      module, "KnownPlans",
      "Plans by what calls stated: objects that cannot change, weak references that stand for "
      "them, and dictionaries of such.")
      .def(nb::init<size_t>(), "most"_a)
      .def("find", &KnownPlans::find, "stated"_a, nb::sig("def find(self, stated: tuple) -> Plan | None"),
           "The plan of a call that stated the same objects or equal numbers and texts.")
      .def("add", &KnownPlans::add, "stated"_a, "plan"_a,
           "Of more than `most` the one unused for longest goes.")
      .def("forget", &KnownPlans::forget, "plan"_a)
      .def("clear", &KnownPlans::clear);
}

}  // namespace megamoe::python
