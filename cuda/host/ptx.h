// Everything that the translator writes in place of inline PTX.
#pragma once

#include "bulk_copies.h"
#include "matrices.h"
#include "ptx_arithmetic.h"
#include "ptx_barriers.h"
#include "ptx_conversions.h"
#include "ptx_memory.h"
#include "ptx_warps.h"
#include "warpgroups.h"
