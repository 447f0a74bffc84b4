// The loop of the register tile: what 08_register_tile.cu describes, with the choices that 10_register_banks.cu makes as parameters.

#pragma once
#include <math_constants.h>

#include "parts.cuh"

// A step of the sum over the 8 column groups: a lane hands HALF of its rows to its partner, and keeps and adds to the others.
template <int HALF>
__device__ __forceinline__ void hand_over(float (&score)[8][4], int column_group) {
    const bool upper = column_group & HALF;
#pragma unroll
    for (int r = 0; r < HALF; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float kept = upper ? score[r + HALF][c] : score[r][c];
            const float given = upper ? score[r][c] : score[r + HALF][c];
            score[r][c] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * HALF);
        }
}

// Where a request's cache rows lie: together, or in pages. quad(first, i) is the i-th quad from key `first`, a multiple of 16.
template <int QUADS>
struct Together {
    const float4* rows;  // [keys][QUADS]
    __device__ __forceinline__ Together(const float* kv, int request, int keys)
        : rows(reinterpret_cast<const float4*>(kv) + (long long)request * keys * QUADS) {}
    __device__ __forceinline__ const float4& quad(int first, int i) const { return rows[(long long)first * QUADS + i]; }
};

template <int QUADS, int PAGE>
struct InPages {
    const float4* pool;  // [pages of the pool][PAGE][QUADS]: an id times the quads of a page passes 2^31 in a large pool
    const int* ids;      // of the request's pages, in the order of its keys
    __device__ __forceinline__ InPages(const float* kv, const int* page_table, int request, int keys)
        : pool(reinterpret_cast<const float4*>(kv)), ids(page_table + (long long)request * ((keys + PAGE - 1) / PAGE)) {}
    __device__ __forceinline__ const float4& quad(int first, int i) const {
        if constexpr (PAGE % 16 == 0) {  // the 16 keys from `first` share a page
            return pool[((long long)ids[first / PAGE] * PAGE + first % PAGE) * QUADS + i];
        } else {
            const int key = first + i / QUADS;
            return pool[((long long)ids[key / PAGE] * PAGE + key % PAGE) * QUADS + i % QUADS];
        }
    }
};

// How the loop is written, with the same result but for the order of additions. What ptxas makes of it differs in which registers
// an instruction reads together. TOTALS of a score: 1, or 2, even and odd columns apart. SCORES, KEYS_AT_ONCE: turns of the loops over
// columns and over keys that are unrolled into one. FREE: sums need not lie in the registers that they are stored from.
template <int TOTALS, int SCORES, int KEYS_AT_ONCE, bool FREE, int LATENT, int ROPE, int WARPS, class Rows, class... Cache>
__device__ __forceinline__ void attend(const float* __restrict__ q, const unsigned char* __restrict__ visible,
                                       float* __restrict__ part_sum, float2* __restrict__ part_stats, int heads, int q_len,
                                       int prefix, float scale, int parts, int tiles_per_part, const Cache*... cache) {
    constexpr int WIDTH = LATENT + ROPE, QUADS = WIDTH / 4, KEYS = 16, ROWS = 8, THREADS = WARPS * 32;
    constexpr int PITCH = QUADS + 2;  // of a key in shared memory: 4 keys of 2 neighbouring quads meet no bank twice
    constexpr int STAGED = KEYS * QUADS / THREADS;  // quads of the next tile that a thread carries
    static_assert(QUADS % 8 == 0 && PITCH % 8 == 2 && LATENT == 512 && KEYS * QUADS % THREADS == 0, "see the lanes below");
    extern __shared__ float4 shared[];
    float4* query = shared;                                                         // [WARPS * ROWS][QUADS]
    float4* tile = query + WARPS * ROWS * QUADS;                                    // [KEYS][PITCH]
    float* weight = reinterpret_cast<float*>(tile + KEYS * PITCH);                  // [WARPS][KEYS][ROWS]

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int key_group = lane % 4, column_group = lane / 4;  // scores: keys key_group + 4 c, quads column_group + 8 i
    const int part = blockIdx.y, request = blockIdx.z;
    const int rows = q_len * heads, first_row = blockIdx.x * WARPS * ROWS;
    const int keys = prefix + q_len;
    const int begin = part * tiles_per_part * KEYS, end = min(begin + tiles_per_part * KEYS, keys);
    const float4* query_rows = reinterpret_cast<const float4*>(q) + ((long long)request * rows + first_row) * QUADS;
    const Rows rows_of_request(cache..., request, keys);
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    const int rows_here = min(WARPS * ROWS, rows - first_row);
    for (int i = threadIdx.x; i < WARPS * ROWS * QUADS; i += THREADS) query[i] = i < rows_here * QUADS ? query_rows[i] : zero;
    weight += warp * KEYS * ROWS;
    const float4* own_query = query + warp * ROWS * QUADS;

    // In the softmax a lane has row column_group of its warp. Rows past the end are computed like row 0's node and not stored.
    const int row = min(first_row + warp * ROWS + column_group, rows - 1);
    const unsigned char* seen = visible + ((long long)request * q_len + row / heads) * q_len;

    float4 sum[ROWS][LATENT / 128];  // columns 4 lane + 128 c of each row, not yet divided by its total
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < LATENT / 128; ++c) sum[r][c] = zero;
    float largest = -CUDART_INF_F, total = 0.0f;  // of the lane's row; total over the lane's own keys only

    float4 staged[STAGED];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int s = 0; s < STAGED; ++s) {
            const int i = threadIdx.x + s * THREADS;
            staged[s] = first + i / QUADS < end ? rows_of_request.quad(first, i) : zero;
        }
    };
    fetch(begin);

    for (int first = begin; first < end; first += KEYS) {
        __syncthreads();  // everybody is done with the tile before
#pragma unroll
        for (int s = 0; s < STAGED; ++s) {
            const int i = threadIdx.x + s * THREADS;
            tile[i / QUADS * PITCH + i % QUADS] = staged[s];
        }
        __syncthreads();

        float score[ROWS][4], odd_columns[ROWS][4];  // the latter only of two totals
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < 4; ++c) score[r][c] = odd_columns[r][c] = 0.0f;
        auto& odd = TOTALS == 2 ? odd_columns : score;
#pragma unroll SCORES
        for (int i = column_group; i < QUADS; i += 8) {
            float4 key[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) key[c] = tile[(key_group + 4 * c) * PITCH + i];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float4 a = own_query[r * QUADS + i];
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    score[r][c] = fmaf(a.x, key[c].x, score[r][c]);
                    odd[r][c] = fmaf(a.y, key[c].y, odd[r][c]);
                    score[r][c] = fmaf(a.z, key[c].z, score[r][c]);
                    odd[r][c] = fmaf(a.w, key[c].w, odd[r][c]);
                }
            }
        }
        if constexpr (TOTALS == 2) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < 4; ++c) score[r][c] += odd[r][c];
        }
        hand_over<4>(score, column_group);
        hand_over<2>(score, column_group);
        hand_over<1>(score, column_group);

        // score[0][c] is now the lane's row with key first + key_group + 4 c.
        float now = largest;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int j = first + key_group + 4 * c;
            const bool sees = j < end && (j < prefix || seen[j - prefix]);
            score[0][c] = sees ? score[0][c] * scale : -CUDART_INF_F;
            now = fmaxf(now, score[0][c]);
        }
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        // No key seen yet: subtract 0 instead of -inf, since -inf - -inf is NaN.
        const float shift = now == -CUDART_INF_F ? 0.0f : now;
        const float factor = expf(largest - shift);
        total *= factor;
        largest = now;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float w = expf(score[0][c] - shift);
            total += w;
            weight[(key_group + 4 * c) * ROWS + column_group] = w;
        }
        if (__any_sync(0xffffffffu, factor != 1.0f)) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float of_row = __shfl_sync(0xffffffffu, factor, 4 * r);
#pragma unroll
                for (int c = 0; c < LATENT / 128; ++c) {
                    sum[r][c].x *= of_row;
                    sum[r][c].y *= of_row;
                    sum[r][c].z *= of_row;
                    sum[r][c].w *= of_row;
                }
            }
        }
        __syncwarp();
        fetch(first + KEYS);  // into registers that the scores no longer need

        const bool hidden = first + KEYS > prefix;  // keys of this tile may be hidden from some rows, and hold NaN
#pragma unroll KEYS_AT_ONCE
        for (int k = 0; k < KEYS; ++k) {
            const float4 upper = reinterpret_cast<const float4*>(weight + k * ROWS)[0];
            const float4 lower = reinterpret_cast<const float4*>(weight + k * ROWS)[1];
            const float w[ROWS] = {upper.x, upper.y, upper.z, upper.w, lower.x, lower.y, lower.z, lower.w};
            float4 v[LATENT / 128];
#pragma unroll
            for (int c = 0; c < LATENT / 128; ++c) v[c] = tile[k * PITCH + lane + 32 * c];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (hidden && w[r] == 0.0f) continue;  // 0 * NaN is NaN; the same for all lanes
#pragma unroll
                for (int c = 0; c < LATENT / 128; ++c) {
                    sum[r][c].x = fmaf(w[r], v[c].x, sum[r][c].x);
                    sum[r][c].y = fmaf(w[r], v[c].y, sum[r][c].y);
                    sum[r][c].z = fmaf(w[r], v[c].z, sum[r][c].z);
                    sum[r][c].w = fmaf(w[r], v[c].w, sum[r][c].w);
                }
            }
        }
    }

    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const float one = keys > 0 ? 1.0f : 2.0f;  // always 1, which ptxas cannot know
    const long long first_stored = (long long)request * rows + first_row + warp * ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (first_row + warp * ROWS + r >= rows) break;
        float4* stored = reinterpret_cast<float4*>(part_sum + ((first_stored + r) * parts + part) * LATENT);
#pragma unroll
        for (int c = 0; c < LATENT / 128; ++c) {
            float4 s = sum[r][c];
            if constexpr (FREE) s = make_float4(s.x * one, s.y * one, s.z * one, s.w * one);
            stored[lane + 32 * c] = s;
        }
    }
    if (key_group == 0 && first_row + warp * ROWS + column_group < rows)
        part_stats[(first_stored + column_group) * parts + part] = make_float2(largest, total);
}
