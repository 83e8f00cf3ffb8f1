// Threads that routing operators cannot have: too many asked for, or refused by the system.
#include "route/workers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "megamoe/routing.h"
#include "route/tensors.h"

namespace megamoe::route {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve too much address space

/// Leaves this process room for a few thread stacks.
void limit_address_space() {
  long pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) std::exit(2);
  std::fclose(file);
  const rlim_t bytes = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (64 << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
}

TEST(WorkersDeathTest, TheCallerDoesTheWorkOfThreadsThatCannotStart) {
  std::mt19937 random(1);
  const Input x = random_rows(random, DType::kFloat32, 4000, 256);
  const Input ids = random_ids(random, DType::kInt32, {4000, 2}, 0, 6);
  MoeTokenPermuteArgs args;
  args.tokens = x;
  args.indices = ids;
  auto few = moe_token_permute_outputs(args), many = moe_token_permute_outputs(args);
  ASSERT_TRUE(few && many);
  Output memory[] = {Output(few->permuted_tokens), Output(few->sorted_indices),
                     Output(few->expanded_scale),  Output(many->permuted_tokens),
                     Output(many->sorted_indices), Output(many->expanded_scale)};
  ASSERT_TRUE(moe_token_permute(args, *few, {.threads = 1, .isa = std::nullopt}));
  const auto in_little_space = [&] {
    limit_address_space();
    if (!moe_token_permute(args, *many, {.threads = base::kMaxThreads, .isa = std::nullopt})) return 1;
    return memory[0].bytes() == memory[3].bytes() && memory[1].bytes() == memory[4].bytes() ? 0 : 3;
  };
  EXPECT_EXIT(std::_Exit(in_little_space()), testing::ExitedWithCode(0), "");
}

#endif

TEST(Workers, MostThreads) {
  EXPECT_TRUE(Workers::create({.threads = 4096, .isa = std::nullopt}));
  for (int threads : {4097, 2147483647, -1}) {
    EXPECT_EQ(Workers::create({.threads = threads, .isa = std::nullopt}).status().message(),
              "threads = " + std::to_string(threads) + ": expected 0 (automatic) or a number up to 4096");
  }
}

TEST(Workers, LevelsThatDoNotExist) {
  for (int level : {-1, kIsaCount}) {
    EXPECT_EQ(Workers::create({.threads = 1, .isa = static_cast<Isa>(level)}).status().message(),
              "isa = unknown: expected one of generic, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  }
}

}  // namespace
}  // namespace megamoe::route
