// Everything that the translator writes in place of inline PTX.
#pragma once

#include "matrices.h"
#include "ptx_arithmetic.h"
#include "ptx_conversions.h"
#include "ptx_memory.h"
#include "ptx_warps.h"
#include "warpgroups.h"
