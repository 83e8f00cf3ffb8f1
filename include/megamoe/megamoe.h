// Everything of the public C++ interface.
#pragma once

#include "megamoe/group.h"
#include "megamoe/isa.h"
#include "megamoe/mega_moe.h"
#include "megamoe/quantise.h"
#include "megamoe/reference.h"
#include "megamoe/routing.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "megamoe/tuning.h"
#include "megamoe/version.h"
