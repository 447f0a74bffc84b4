// Parts of an online softmax, and the kernel that joins them.
//
// A part of a row (request, node, head) covers some of its keys: part_sum holds sum_j exp(s[j] - largest) * V[j,:], part_stats
// its largest score and total = sum_j exp(s[j] - largest). A part that saw no key has largest -inf, total 0 and a sum of zeros.

#pragma once
#include <math_constants.h>

// A block a row, LATENT / 4 threads, a thread four columns.
template <int LATENT>
__global__ void __launch_bounds__(LATENT / 4)
join_parts(const float* __restrict__ part_sum,     // [rows, parts, LATENT]
           const float2* __restrict__ part_stats,  // [rows, parts]: largest, total
           float* __restrict__ out,                // [rows, LATENT]
           float* __restrict__ lse,                // [rows], natural logarithm
           int parts) {
    const long long row = blockIdx.x;
    const float2* stats = part_stats + row * parts;
    float largest = -CUDART_INF_F;
    for (int p = 0; p < parts; ++p) largest = fmaxf(largest, stats[p].x);
    const float shift = largest == -CUDART_INF_F ? 0.0f : largest;  // -inf - -inf is NaN

    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int p = 0; p < parts; ++p) {
        const float factor = expf(stats[p].x - shift);
        const float4 some = reinterpret_cast<const float4*>(part_sum + (row * parts + p) * LATENT)[threadIdx.x];
        total += stats[p].y * factor;
        sum.x += some.x * factor;
        sum.y += some.y * factor;
        sum.z += some.z * factor;
        sum.w += some.w * factor;
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;  // a row that sees nothing: zeros and -inf
    reinterpret_cast<float4*>(out + row * LATENT)[threadIdx.x] =
        make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    if (threadIdx.x == 0) lse[row] = largest + logf(total);
}
