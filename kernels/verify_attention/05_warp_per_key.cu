// MLA verify attention, version 5: warp per key.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: a block does one head of a node; a warp computes the dot product of one of the 8 keys of a tile, 18 elements a lane,
//          summed by shuffles, so that all 256 threads are busy and no two lanes meet in a bank.
// Should:  keep 23 KB of shared memory a block (8 blocks an SM on sm_90, 4 on sm_120) and 8 times the blocks of a head tile.
// Limits:  every head loads every key by itself: 8 times the bytes of 8 heads a block, out of L2; 4-byte loads, one for each
//          multiply; four barriers for 8 keys.

#include <math_constants.h>

#include "parts.cuh"

template <int LATENT, int ROPE>
__global__ void __launch_bounds__(256)
warp_per_key(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
             const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
             const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
             float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
             float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
             int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    constexpr int WIDTH = LATENT + ROPE, KEYS = 8, THREADS = 256;
    static_assert(WIDTH % 32 == 0 && LATENT % THREADS == 0, "whole rows a warp, whole columns a block");
    __shared__ float query[WIDTH];
    __shared__ float tile[KEYS][WIDTH];
    __shared__ float sum[LATENT];  // not yet divided by total
    __shared__ float score[KEYS];

    const int head = blockIdx.x, node = blockIdx.y, request = blockIdx.z / parts, part = blockIdx.z % parts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int keys = prefix + q_len;
    const int begin = part * tiles_per_part * KEYS, end = min(begin + tiles_per_part * KEYS, keys);
    const long long row = ((long long)request * q_len + node) * heads + head;
    const float* keys_of_request = kv + (long long)request * keys * WIDTH;
    const unsigned char* seen = visible + ((long long)request * q_len + node) * q_len;

    for (int d = threadIdx.x; d < WIDTH; d += THREADS) query[d] = q[row * WIDTH + d];
    for (int d = threadIdx.x; d < LATENT; d += THREADS) sum[d] = 0.0f;
    float largest = -CUDART_INF_F, total = 0.0f;  // every thread keeps them: eight scores are fewer than a barrier more

    for (int first = begin; first < end; first += KEYS) {
        const int here = min(KEYS, end - first);
        for (int i = threadIdx.x; i < here * WIDTH; i += THREADS)
            tile[i / WIDTH][i % WIDTH] = keys_of_request[(long long)first * WIDTH + i];
        __syncthreads();

        const int j = first + warp;
        float dot = 0.0f;
        const bool sees = warp < here && (j < prefix || seen[j - prefix]);  // the same for all lanes of a warp
        if (sees) {
#pragma unroll
            for (int i = 0; i < WIDTH / 32; ++i) dot += query[lane + 32 * i] * tile[warp][lane + 32 * i];
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

        for (int d = threadIdx.x; d < LATENT; d += THREADS) {
            float value = sum[d] * factor;
#pragma unroll
            for (int k = 0; k < KEYS; ++k) {
                // A hidden key may hold anything, NaN too, and 0 * NaN is NaN: skip it, do not trust its weight of 0.
                if (weight[k] != 0.0f) value += weight[k] * tile[k][d];
            }
            sum[d] = value;
        }
        __syncthreads();
    }

    for (int d = threadIdx.x; d < LATENT; d += THREADS) part_sum[(row * parts + part) * LATENT + d] = sum[d];
    if (threadIdx.x == 0) part_stats[row * parts + part] = make_float2(largest, total);
}
