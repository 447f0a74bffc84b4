#pragma once
#include "lanes.cuh"

__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
