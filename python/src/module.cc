// The extension module megamoe._core: the C++ interface as thin classes. Argument names, defaults and tensor
// adaption are the Python sources' job.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "errors.h"
#include "known_plans.h"
#include "layer.h"
#include "megamoe/megamoe.h"
#include "plain_arrays.h"
#include "quantise.h"
#include "routing.h"
#include "tensors.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

void bind_build(nb::module_& module) {
  module.def("version", &version, "Version of the library.");
  module.def(
      "isa_levels",
      [] {
        std::vector<std::tuple<std::string, std::string, bool, std::string>> levels;
        for (const IsaInfo& info : isa_levels()) {
          levels.emplace_back(info.name, info.requirement, info.runnable, info.reason);
        }
        return levels;
      },
      "All instruction-set levels in ascending order: (name, requirement, runnable, why not).");
  module.def(
      "default_isa", [] { return std::string(isa_name(value_or_raise(default_isa()))); },
      "Name of the level in use unless a buffer asks for another.");
  module.def("default_isa_reason", &default_isa_reason, "One sentence that says why it is this level.");
  module.def(
      "dtypes",
      [] {
        std::vector<std::tuple<std::string, int>> types;
#define MEGAMOE_FORMAT(enumerator, name, bits, code) types.emplace_back(name, code);
#include "megamoe/formats.inc"
#undef MEGAMOE_FORMAT
        return types;
      },
      "All element types: (name, number in the operator documents or -1).");
}

void bind_group(nb::module_& module) {
  nb::class_<Group>(
      module, "Group",
      "One rank's handle on a group of ranks. Making a buffer on a group is collective over its ranks.")
      .def_static("self", &Group::self, "A group of one rank.")
      .def_static(
          "local", [](nb::handle size) { return value_or_raise(Group::local(to_int("size", size))); },
          "size"_a.none(), nb::sig("def local(size: int) -> list[Group]"),
          "`size` ranks in this process: a list of handles, each to be used from its own thread.")
      .def_static(
          "shm",
          [](nb::handle key, nb::handle rank, nb::handle size) {
            const std::string name = to_text("key", key);
            const int number = to_int("rank", rank);
            return value_or_raise(Group::shm(name, number, to_int("size", size)));
          },
          "key"_a.none(), "rank"_a.none(), "size"_a.none(),
          nb::sig("def shm(key: str, rank: int, size: int) -> Group"),
          "`size` processes of this host. `key` names the group: all its processes give the same key, and no "
          "other\n"
          "group of the same user does at the same time. Processes meet when they make a buffer.")
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("transport", &Group::transport, "\"self\", \"local\" or \"shm\".")
      .def("__repr__", [](const Group& group) {
        return "<megamoe.Group rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
               ", " + group.transport() + ">";
      });
}

void bind_config(nb::module_& module) {
  nb::class_<BufferConfig>(module, "BufferConfig", "What all ranks of a buffer agree on.")
      .def(nb::init<>())
      .def_rw("num_experts", &BufferConfig::num_experts)
      .def_rw("num_max_tokens_per_rank", &BufferConfig::num_max_tokens_per_rank)
      .def_rw("num_topk", &BufferConfig::num_topk)
      .def_rw("hidden", &BufferConfig::hidden)
      .def_rw("intermediate_hidden", &BufferConfig::intermediate_hidden)
      .def_rw("max_recv_token_num", &BufferConfig::max_recv_token_num)
      .def_rw("dispatch_quant_mode", &BufferConfig::dispatch_quant_mode)
      .def_prop_rw(
          "dispatch_quant_out_dtype",
          [](const BufferConfig& config) { return std::string(dtype_name(config.dispatch_quant_out_dtype)); },
          [](BufferConfig& config, const char* name) {
            config.dispatch_quant_out_dtype = dtype_from_name(name);
          })
      .def_rw("combine_quant_mode", &BufferConfig::combine_quant_mode)
      .def_rw("comm_alg", &BufferConfig::comm_alg)
      .def_rw("topk_weights_type", &BufferConfig::topk_weights_type)
      .def_rw("topo_type", &BufferConfig::topo_type)
      .def_rw("rank_num_per_server", &BufferConfig::rank_num_per_server)
      .def_rw("combine_comm_mode", &BufferConfig::combine_comm_mode)
      .def_rw("profile", &BufferConfig::profile)
      .def_rw("ccl_buffer_size", &BufferConfig::ccl_buffer_size);
  module.def(
      "ccl_buffer_size",
      [](int64_t ep_world_size, const BufferConfig& config) {
        return value_or_raise(mega_moe_ccl_buffer_size(ep_world_size, config));
      },
      "ep_world_size"_a, "config"_a, "Bytes of symmetric memory one rank needs.");
}

void bind_buffer(nb::module_& module) {
  nb::class_<SymmBuffer>(module, "SymmBuffer",
                         "The memory through which ranks exchange rows, and this rank's threads.")
      .def_static(
          "create",
          [](const Group& group, const BufferConfig& config, int threads, std::optional<std::string> isa,
             int64_t deadline_ms, bool trace) {
            BufferOptions options;
            options.threads = threads;
            options.deadline = std::chrono::milliseconds(deadline_ms);
            options.trace = trace;
            if (isa) {
              const Result<Isa> level = isa_from_name(*isa);
              // The other ranks are in the creation already.
              if (!level) {
                raise_if_error(
                    unlocked([&] { return SymmBuffer::refuse_creation(group, level.status(), options); }));
              }
              options.isa = *level;
            }
            return value_or_raise(unlocked([&] { return SymmBuffer::create(group, config, options); }));
          },
          "group"_a, "config"_a, "threads"_a, "isa"_a.none(), "deadline_ms"_a, "trace"_a)
      .def_static(
          "refuse_creation",
          [](const Group& group, Code code, const std::string& message, int64_t deadline_ms) {
            BufferOptions options;
            options.deadline = std::chrono::milliseconds(deadline_ms);
            raise_if_error(
                unlocked([&] { return SymmBuffer::refuse_creation(group, Status(code, message), options); }));
          },
          "group"_a, "code"_a, "message"_a, "deadline_ms"_a,
          "Takes part in a creation with an error; raises what all ranks return.")
      .def("destroy",
           [](SymmBuffer& buffer) {
             unlocked([&] {
               buffer.destroy();
               return 0;
             });
           })
      .def(
          "refuse_call",
          [](SymmBuffer& buffer, Code code, const std::string& message) {
            raise_if_error(unlocked([&] { return buffer.refuse_call(Status(code, message)); }));
          },
          "code"_a, "message"_a, "Takes part in the next call with an error; raises what all ranks return.")
      .def(
          "trace",
          [](const SymmBuffer& buffer) {
            std::vector<std::tuple<std::string, int, int64_t, int64_t>> spans;
            for (const TraceSpan& span : buffer.trace()) {
              spans.emplace_back(trace_stage_name(span.stage), span.thread, span.begin_ns, span.end_ns);
            }
            return spans;
          },
          "Spans of the last call: (stage, thread, begin ns, end ns).")
      .def_prop_ro("rank", &SymmBuffer::rank)
      .def_prop_ro("world_size", &SymmBuffer::world_size)
      .def_prop_ro("threads", &SymmBuffer::threads)
      .def_prop_ro("isa", [](const SymmBuffer& buffer) { return std::string(isa_name(buffer.isa())); })
      .def_prop_ro("experts_per_rank", &SymmBuffer::experts_per_rank)
      .def_prop_ro("capacity", &SymmBuffer::capacity)
      .def_prop_ro("ccl_buffer_size", &SymmBuffer::ccl_buffer_size);
}

}  // namespace
}  // namespace megamoe::python

NB_MODULE(_core, module) {
  // Buffers that live until the interpreter ends are the normal case and are released by the process.
  nb::set_leak_warnings(false);
  module.doc() = "C++ interface of megamoe; use the package megamoe instead.";
  megamoe::python::bind_errors(module);
  megamoe::python::bind_build(module);
  megamoe::python::bind_tensors(module);
  megamoe::python::bind_group(module);
  megamoe::python::bind_config(module);
  megamoe::python::bind_buffer(module);
  megamoe::python::bind_plain_arrays(module);
  megamoe::python::bind_layer(module);
  megamoe::python::bind_known_plans(module);
  megamoe::python::bind_checkpoint(module);
  megamoe::python::bind_routing(module);
  megamoe::python::bind_quantise(module);
}
