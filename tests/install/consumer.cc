// Uses an installed megamoe: compiles against its headers and calls into its library.
#include <cstdio>

#include "megamoe/megamoe.h"

int main() {
  const auto int8 = megamoe::dtype_from_op_code(1);
  if (!int8) return 1;
  std::printf("megamoe %s, %s\n", megamoe::version(), megamoe::dtype_name(*int8));
  return 0;
}
