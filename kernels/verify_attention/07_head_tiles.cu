// MLA verify attention, version 7: head tiles.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: a block does HEADS heads (a tunable: 1, 2, 4, 8, 16) with the work shared out as in 06_float4.cu: a warp keeps its key
//          in registers and takes it to every head; the query may stay outside shared memory (QUERY_SHARED = 0), in L1.
// Should:  divide the bytes out of L2 by HEADS, and keep all threads busy where 01_head_tile.cu kept half.
// Limits:  shared memory grows by 2,304 B a head with the query in it, so that fewer blocks fit an SM; blocks are HEADS times
//          fewer; each multiply of a score still takes a float of the query from shared memory or L1.
//          q and kv must lie on 16-byte boundaries.

#include <math_constants.h>

#include "parts.cuh"

template <int LATENT, int ROPE, int HEADS, int QUERY_SHARED>
__global__ void __launch_bounds__(256)
head_tiles(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
           const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
           const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
           float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
           float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
           int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    constexpr int WIDTH = LATENT + ROPE, QUADS = WIDTH / 4, KEYS = 8, THREADS = 256, ROUNDS = (QUADS + 31) / 32;
    static_assert(WIDTH % 4 == 0 && LATENT == 2 * THREADS, "rows of 16-byte loads, two columns a thread");
    static_assert(HEADS * KEYS <= THREADS, "a thread a (head, key) in the online update");
    extern __shared__ float4 query[];  // [HEADS][QUADS], only with QUERY_SHARED
    __shared__ float4 tile[KEYS][QUADS];
    __shared__ float weight[HEADS][KEYS];  // scores, then exponentials
    __shared__ float rescale[HEADS];

    const int first_head = blockIdx.x * HEADS, node = blockIdx.y, request = blockIdx.z / parts, part = blockIdx.z % parts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int heads_here = min(HEADS, heads - first_head);
    const int keys = prefix + q_len;
    const int begin = part * tiles_per_part * KEYS, end = min(begin + tiles_per_part * KEYS, keys);
    const long long row = ((long long)request * q_len + node) * heads + first_head;
    const float4* query_rows = reinterpret_cast<const float4*>(q) + row * QUADS;
    const float4* keys_of_request = reinterpret_cast<const float4*>(kv) + (long long)request * keys * QUADS;
    const unsigned char* seen = visible + ((long long)request * q_len + node) * q_len;

    if (QUERY_SHARED)
        for (int i = threadIdx.x; i < heads_here * QUADS; i += THREADS) query[i] = query_rows[i];
    float2 sum[HEADS];  // columns 2 threadIdx.x and the next of each head, not yet divided by its total
#pragma unroll
    for (int h = 0; h < HEADS; ++h) sum[h] = make_float2(0.0f, 0.0f);
    float largest = -CUDART_INF_F, total = 0.0f;  // of head threadIdx.x / KEYS, in each of its KEYS threads

    for (int first = begin; first < end; first += KEYS) {
        const int here = min(KEYS, end - first);
        for (int i = threadIdx.x; i < here * QUADS; i += THREADS)
            tile[i / QUADS][i % QUADS] = keys_of_request[(long long)first * QUADS + i];
        __syncthreads();

        const int j = first + warp;
        if (warp < here && (j < prefix || seen[j - prefix])) {  // the same for all lanes of a warp
            float4 key[ROUNDS];
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r)
                key[r] = lane + 32 * r < QUADS ? tile[warp][lane + 32 * r] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (int h = 0; h < heads_here; ++h) {
                float dot = 0.0f;
#pragma unroll
                for (int r = 0; r < ROUNDS; ++r) {
                    if (lane + 32 * r >= QUADS) break;
                    const float4 a = QUERY_SHARED ? query[h * QUADS + lane + 32 * r] : query_rows[h * QUADS + lane + 32 * r];
                    dot += a.x * key[r].x + a.y * key[r].y + a.z * key[r].z + a.w * key[r].w;
                }
                for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
                if (lane == 0) weight[h][warp] = dot * scale;
            }
        } else if (lane < heads_here) {
            weight[lane][warp] = -CUDART_INF_F;
        }
        __syncthreads();

        if (threadIdx.x < HEADS * KEYS) {  // a thread a (head, key); the KEYS threads of a head are neighbours
            const int h = threadIdx.x / KEYS, k = threadIdx.x % KEYS;
            const unsigned members = HEADS * KEYS >= 32 ? 0xffffffffu : (1u << (HEADS * KEYS)) - 1;
            const float score = h < heads_here ? weight[h][k] : -CUDART_INF_F;
            float now = fmaxf(largest, score);
            for (int step = KEYS / 2; step > 0; step /= 2) now = fmaxf(now, __shfl_xor_sync(members, now, step));
            // No key seen yet: subtract 0 instead of -inf, since -inf - -inf is NaN.
            const float shift = now == -CUDART_INF_F ? 0.0f : now;
            const float factor = expf(largest - shift), w = expf(score - shift);
            float tile_total = w;
            for (int step = KEYS / 2; step > 0; step /= 2) tile_total += __shfl_xor_sync(members, tile_total, step);
            total = total * factor + tile_total;
            largest = now;
            weight[h][k] = w;
            if (k == 0) rescale[h] = factor;
        }
        __syncthreads();

#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            sum[h].x *= rescale[h];
            sum[h].y *= rescale[h];
        }
#pragma unroll
        for (int k = 0; k < KEYS; ++k) {
            if (k >= here || (first + k >= prefix && !seen[first + k - prefix])) continue;  // may hold anything, NaN too
            const float2 v = reinterpret_cast<const float2*>(tile[k])[threadIdx.x];
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                sum[h].x += weight[h][k] * v.x;
                sum[h].y += weight[h][k] * v.y;
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int h = 0; h < HEADS; ++h)
        if (h < heads_here) reinterpret_cast<float2*>(part_sum + ((row + h) * parts + part) * LATENT)[threadIdx.x] = sum[h];
    if (threadIdx.x < heads_here * KEYS && threadIdx.x % KEYS == 0)
        part_stats[(row + threadIdx.x / KEYS) * parts + part] = make_float2(largest, total);
}
