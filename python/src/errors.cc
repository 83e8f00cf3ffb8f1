// Which exception stands for which code, and how one is raised.
#include "errors.h"

#include <nanobind/stl/string.h>

#include <cctype>
#include <limits>
#include <string>
#include <string_view>

namespace nb = nanobind;

namespace megamoe::python {
namespace {

// Lives as long as the interpreter: exceptions can be raised until its very end.
PyObject* deadline_error = nullptr;

PyObject* exception_type(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kCapacity:
    case Code::kSettingsDiffer:
      return PyExc_ValueError;
    case Code::kInvalidType:
      return PyExc_TypeError;
    case Code::kTimedOut:
      return deadline_error;
    default:
      return PyExc_RuntimeError;
  }
}

// Arguments that have another name in the C++ interface; a name with a dot before the part in front of it.
constexpr struct {
  std::string_view cpp, python;
} kNames[] = {
    {"weight1.scale_group", "scale_group"},
    {"weight2.scale_group", "scale_group"},
    {"weight1.zero", "l1_zero"},
    {"weight2.zero", "l2_zero"},
    {"weight1.up", "l1_up"},
    {"shared_weight1.scale_group", "shared_scale_group"},
    {"shared_weight2.scale_group", "shared_scale_group"},
    {"shared_weight1.zero", "shared_l1_zero"},
    {"shared_weight2.zero", "shared_l2_zero"},
    {"shared_weight1.up", "shared_l1_up"},
    {"weight1", "l1_weights"},
    {"weight2", "l2_weights"},
    {"weight_scales1", "l1_weights_sf"},
    {"weight_scales2", "l2_weights_sf"},
    {"bias1", "l1_bias"},
    {"bias2", "l2_bias"},
    {"added_bias1", "l1_added_bias"},
    {"added_bias2", "l2_added_bias"},
    {"shared_weight1", "shared_l1_weights"},
    {"shared_weight2", "shared_l2_weights"},
    {"shared_weight_scales1", "shared_l1_weights_sf"},
    {"shared_weight_scales2", "shared_l2_weights_sf"},
    {"shared_bias1", "shared_l1_bias"},
    {"shared_bias2", "shared_l2_bias"},
    {"shared_added_bias1", "shared_l1_added_bias"},
    {"shared_added_bias2", "shared_l2_added_bias"},
    {"shared_weight1_interleave", "weight1_interleave"},
};

/// The message with the names of the Python arguments.
std::string python_text(std::string_view message) {
  const auto in_word = [&](size_t i) {
    return i < message.size() &&
           (std::isalnum(static_cast<unsigned char>(message[i])) != 0 || message[i] == '_');
  };
  std::string text;
  for (size_t i = 0; i < message.size();) {
    size_t end = i;
    while (in_word(end)) ++end;
    if (end == i) {
      text += message[i++];
      continue;
    }
    std::string_view word = message.substr(i, end - i);
    for (const auto& name : kNames) {
      const size_t after = i + name.cpp.size();
      if (!message.substr(i).starts_with(name.cpp) || in_word(after)) continue;
      word = name.python;
      end = after;
      break;
    }
    text += word;
    i = end;
  }
  return text;
}

}  // namespace

void raise(const Status& status) {
  nb::object error = nb::borrow(exception_type(status.code()))(nb::cast(python_text(status.message())));
  nb::setattr(error, "code", nb::cast(status.code()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

namespace {

[[noreturn]] void refuse(Code code, const char* name, nb::handle value, const char* expected) {
  constexpr size_t kLongest = 80;
  std::string shown = nb::cast<std::string>(nb::steal<nb::str>(PyObject_ASCII(value.ptr())));
  if (shown.size() > kLongest) shown.replace(kLongest - 3, std::string::npos, "...");
  raise(Status(code, std::string(name) + " = " + shown + ": expected " + expected));
}

}  // namespace

int to_int(const char* name, nb::handle value) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    refuse(Code::kInvalidType, name, value, "an integer");
  }
  const Py_ssize_t number = PyNumber_AsSsize_t(value.ptr(), nullptr);  // clipped to its range
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse(Code::kInvalidType, name, value, "an integer");
  }
  if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
    refuse(Code::kInvalidArgument, name, value, "an integer of 32 bits");
  }
  return static_cast<int>(number);
}

std::string to_text(const char* name, nb::handle value) {
  if (!nb::isinstance<nb::str>(value)) refuse(Code::kInvalidType, name, value, "a string");
  std::string text;
  if (!nb::try_cast(value, text) || text.find('\0') != std::string::npos) {
    PyErr_Clear();
    refuse(Code::kInvalidArgument, name, value, "a string that UTF-8 can encode, without NUL");
  }
  return text;
}

void bind_errors(nb::module_& module) {
  nb::enum_<Code>(module, "Code", nb::is_arithmetic(),
                  "Kind of an error; every exception this package raises has it as its attribute `code`.")
      .value("OK", Code::kOk)
      .value("INVALID_ARGUMENT", Code::kInvalidArgument,
             "an argument has a wrong value, shape or layout (ValueError)")
      .value("INVALID_TYPE", Code::kInvalidType, "an argument has a wrong type or data type (TypeError)")
      .value("UNSUPPORTED", Code::kUnsupported, "not available in this build or on this machine (ValueError)")
      .value("CAPACITY", Code::kCapacity, "more tokens than the buffer has room for (ValueError)")
      .value("SETTINGS_DIFFER", Code::kSettingsDiffer,
             "the ranks of a group have different settings (ValueError)")
      .value("PEER_FAILED", Code::kPeerFailed, "another rank died, failed or left (RuntimeError)")
      .value("TIMED_OUT", Code::kTimedOut, "a wait passed its deadline (DeadlineError)")
      .value("OUT_OF_MEMORY", Code::kOutOfMemory, "memory could not be reserved (RuntimeError)")
      .value("SYSTEM", Code::kSystem, "the operating system refused something (RuntimeError)")
      .value("CLOSED", Code::kClosed, "the object was destroyed (RuntimeError)")
      .value("DATA_LOSS", Code::kDataLoss, "a file is truncated or malformed (RuntimeError)");

  nb::tuple bases = nb::make_tuple(nb::borrow(PyExc_RuntimeError), nb::borrow(PyExc_TimeoutError));
  const std::string name = nb::cast<std::string>(module.attr("__name__")) + ".DeadlineError";
  deadline_error = PyErr_NewExceptionWithDoc(
      name.c_str(), "A wait for other ranks passed its deadline; a RuntimeError and a TimeoutError.",
      bases.ptr(), nullptr);
  if (deadline_error == nullptr) throw nb::python_error();
  module.attr("DeadlineError") = nb::borrow(deadline_error);

  module.def(
      "raise_error", [](Code code, const char* message) { raise(Status(code, message)); }, nb::arg("code"),
      nb::arg("message"), nb::sig("def raise_error(code: Code, message: str) -> typing.NoReturn"),
      "Raises the exception of a code.");
}

}  // namespace megamoe::python
