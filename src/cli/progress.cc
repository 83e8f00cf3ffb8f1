// A progress bar on a terminal, for work that takes longer than two seconds.
#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace megamoe::cli {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr int kWidth = 30;

}  // namespace

Progress::Progress() : terminal_(isatty(STDOUT_FILENO) != 0) {}
Progress::~Progress() {
  clear();
}

void Progress::show(const std::string& label, int64_t done, int64_t total) {
  const auto now = Clock::now();
  if (!terminal_ || now - start_ < kPatience || now - last_ < kInterval || total <= 0) return;
  last_ = now;
  drawn_ = true;
  const int filled = static_cast<int>(std::clamp<int64_t>(done * kWidth / total, 0, kWidth));
  std::printf("\r\033[K[%s%s] %lld/%lld %s", std::string(static_cast<size_t>(filled), '#').c_str(),
              std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(), static_cast<long long>(done),
              static_cast<long long>(total), label.c_str());
  std::fflush(stdout);
}

void Progress::clear() {
  if (!drawn_) return;
  drawn_ = false;
  std::printf("\r\033[K");
  std::fflush(stdout);
}

}  // namespace megamoe::cli
