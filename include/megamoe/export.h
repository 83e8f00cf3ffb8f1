// Symbol visibility of the public interface.
#pragma once

#define MEGAMOE_API __attribute__((visibility("default")))
