// MLA verify attention, version 6: float4.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: keys and query move 16 bytes a lane, from L2 and from shared memory; a thread keeps its two columns of the sum in
//          registers instead of shared memory.
// Should:  need a quarter of the load instructions of 05_warp_per_key.cu, for the same bytes.
// Limits:  the same bytes out of L2, every head every key; one multiply and add for each float loaded from shared memory.
//          q and kv must lie on 16-byte boundaries, as every allocator gives them.

#include <math_constants.h>

#include "parts.cuh"

template <int LATENT, int ROPE>
__global__ void __launch_bounds__(256)
by_float4(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
          const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
          const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
          float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
          float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
          int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    constexpr int WIDTH = LATENT + ROPE, KEYS = 8, THREADS = 256;
    static_assert(WIDTH % 4 == 0 && LATENT == 2 * THREADS, "rows of 16-byte loads, two columns a thread");
    constexpr int QUADS = WIDTH / 4;  // of a row
    __shared__ float4 query[QUADS];
    __shared__ float4 tile[KEYS][QUADS];
    __shared__ float score[KEYS];

    const int head = blockIdx.x, node = blockIdx.y, request = blockIdx.z / parts, part = blockIdx.z % parts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int keys = prefix + q_len;
    const int begin = part * tiles_per_part * KEYS, end = min(begin + tiles_per_part * KEYS, keys);
    const long long row = ((long long)request * q_len + node) * heads + head;
    const float4* keys_of_request = reinterpret_cast<const float4*>(kv) + (long long)request * keys * QUADS;
    const unsigned char* seen = visible + ((long long)request * q_len + node) * q_len;

    if (threadIdx.x < QUADS) query[threadIdx.x] = reinterpret_cast<const float4*>(q)[row * QUADS + threadIdx.x];
    float2 sum = make_float2(0.0f, 0.0f);  // columns 2 threadIdx.x and the next, not yet divided by total
    float largest = -CUDART_INF_F, total = 0.0f;  // every thread keeps them: eight scores are fewer than a barrier more

    for (int first = begin; first < end; first += KEYS) {
        const int here = min(KEYS, end - first);
        for (int i = threadIdx.x; i < here * QUADS; i += THREADS)
            tile[i / QUADS][i % QUADS] = keys_of_request[(long long)first * QUADS + i];
        __syncthreads();

        const int j = first + warp;
        float dot = 0.0f;
        const bool sees = warp < here && (j < prefix || seen[j - prefix]);  // the same for all lanes of a warp
        if (sees) {
#pragma unroll
            for (int i = lane; i < QUADS; i += 32) {
                const float4 a = query[i], b = tile[warp][i];
                dot += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            }
        }
        for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
        if (lane == 0) score[warp] = sees ? dot * scale : -CUDART_INF_F;
        __syncthreads();

        float tile_largest = largest;
#pragma unroll
        for (int k = 0; k < KEYS; ++k) tile_largest = fmaxf(tile_largest, score[k]);
        // No key seen yet: subtract 0 instead of -inf, since -inf - -inf is NaN.
        const float shift = tile_largest == -CUDART_INF_F ? 0.0f : tile_largest;
        const float factor = expf(largest - shift);
        float weight[KEYS], tile_total = 0.0f;  // eight small terms first: total may be tens of thousands of times as large
#pragma unroll
        for (int k = 0; k < KEYS; ++k) {
            weight[k] = expf(score[k] - shift);
            tile_total += weight[k];
        }
        total = total * factor + tile_total;
        largest = tile_largest;

        sum.x *= factor;
        sum.y *= factor;
#pragma unroll
        for (int k = 0; k < KEYS; ++k) {
            // A hidden key may hold anything, NaN too, and 0 * NaN is NaN: skip it, do not trust its weight of 0.
            if (weight[k] != 0.0f) {
                const float2 v = reinterpret_cast<const float2*>(tile[k])[threadIdx.x];
                sum.x += weight[k] * v.x;
                sum.y += weight[k] * v.y;
            }
        }
        __syncthreads();
    }

    reinterpret_cast<float2*>(part_sum + (row * parts + part) * LATENT)[threadIdx.x] = sum;
    if (threadIdx.x == 0) part_stats[row * parts + part] = make_float2(largest, total);
}
