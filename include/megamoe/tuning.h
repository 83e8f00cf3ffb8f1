// Block sizes that were measured for a machine: the file that `megamoe tune` writes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megamoe/export.h"
#include "megamoe/status.h"

namespace megamoe {

/// Measured block sizes of any number of layers on one CPU. They change how long a call takes and no bit of
/// its result. docs/tuning.md has the format.
class MEGAMOE_API Tuning {
 public:
  /// Reads a file. A file that is no tuning file, of another format or another CPU is an error that names the
  /// field, what came and what was expected.
  static Result<std::shared_ptr<const Tuning>> read(const std::string& path);
  /// The same from its text; errors start with `name`.
  static Result<std::shared_ptr<const Tuning>> parse(std::string_view text, const std::string& name);
  ~Tuning();
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;

  /// The path or name it came from.
  const std::string& name() const;

  class Impl;
  const Impl& impl() const { return *impl_; }
  explicit Tuning(std::unique_ptr<const Impl> impl);

 private:
  std::unique_ptr<const Impl> impl_;
};

}  // namespace megamoe
