// Parts of an online softmax, and the kernel that joins them.
//
// A part of a row (request, node, head) covers some of its keys: part_sum holds sum_j exp(s[j] - largest) * V[j,:], part_stats
// its largest score and total = sum_j exp(s[j] - largest). A part that saw no key has largest -inf, total 0 and a sum of zeros.

#pragma once
#include <math_constants.h>

// A block a row, LATENT / 4 threads, a thread four columns. Every warp finds the largest score and the total for itself, a lane a
// part, and then hands each part's factor to all its lanes: the loads of the sums wait for none of each other.
template <int LATENT>
__global__ void __launch_bounds__(LATENT / 4)
join_parts(const float* __restrict__ part_sum,     // [rows, parts, LATENT]
           const float2* __restrict__ part_stats,  // [rows, parts]: largest, total
           float* __restrict__ out,                // [rows, LATENT]
           float* __restrict__ lse,                // [rows], natural logarithm
           int parts) {
    const long long row = blockIdx.x;
    const int lane = threadIdx.x % 32;
    const float2* stats = part_stats + row * parts;
    const float4* sums = reinterpret_cast<const float4*>(part_sum + row * parts * LATENT) + threadIdx.x;

    float largest = -CUDART_INF_F;
    for (int p = lane; p < parts; p += 32) largest = fmaxf(largest, stats[p].x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const float shift = largest == -CUDART_INF_F ? 0.0f : largest;  // -inf - -inf is NaN

    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < parts; first += 32) {
        const int here = min(32, parts - first);
        float factor = 0.0f;
        if (lane < here) {
            const float2 own = stats[first + lane];
            factor = expf(own.x - shift);
            total += own.y * factor;
        }
#pragma unroll 8
        for (int p = 0; p < here; ++p) {
            const float of_part = __shfl_sync(0xffffffffu, factor, p);
            const float4 some = sums[(first + p) * (LATENT / 4)];
            sum.x += some.x * of_part;
            sum.y += some.y * of_part;
            sum.z += some.z * of_part;
            sum.w += some.w * of_part;
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);

    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;  // a row that sees nothing: zeros and -inf
    reinterpret_cast<float4*>(out + row * LATENT)[threadIdx.x] =
        make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    if (threadIdx.x == 0) lse[row] = largest + logf(total);
}
