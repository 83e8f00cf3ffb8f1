// Names of error codes, the version.
#include "megamoe/status.h"

#include "megamoe/version.h"

namespace megamoe {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidType:
      return "invalid type";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kCapacity:
      return "capacity exceeded";
    case Code::kSettingsDiffer:
      return "settings differ";
    case Code::kPeerFailed:
      return "peer failed";
    case Code::kTimedOut:
      return "timed out";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kSystem:
      return "system error";
    case Code::kClosed:
      return "closed";
    case Code::kDataLoss:
      return "data loss";
  }
  return "unknown";
}

const char* version() {
  return MEGAMOE_VERSION;
}

}  // namespace megamoe
