// MLA verify attention, version 2: padded rows.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: rows of the query and of the key tile lie PITCH = 580 floats apart in shared memory instead of 576.
// Should:  end the bank conflicts of the score step. 576 = 18 * 32 puts every row's start into the same bank, and 16 keys of a
//          half warp read one column of 16 rows; 580 = 18 * 32 + 4 spreads them, and 16-byte loads of 8 lanes meet no bank twice.
// Limits:  what limits 01_head_tile.cu, bank conflicts excepted: few blocks, half the threads idle in the score step.

#include <math_constants.h>

template <int LATENT, int ROPE, int HEADS_PER_BLOCK, int KEYS_PER_TILE>
__global__ void __launch_bounds__(256)
padded_rows(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
            const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
            const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
            float* __restrict__ out,                    // [batch, q_len, heads, LATENT]
            float* __restrict__ lse,                    // [batch, q_len, heads], natural logarithm
            int heads, int q_len, int prefix, float scale) {
    constexpr int WIDTH = LATENT + ROPE, PITCH = WIDTH + 4;
    extern __shared__ float shared[];
    float* query = shared;                                 // [HEADS_PER_BLOCK, PITCH]
    float* tile = query + HEADS_PER_BLOCK * PITCH;         // [KEYS_PER_TILE, PITCH]
    float* sum = tile + KEYS_PER_TILE * PITCH;             // [HEADS_PER_BLOCK, LATENT], not yet divided by total
    float* weight = sum + HEADS_PER_BLOCK * LATENT;        // [HEADS_PER_BLOCK, KEYS_PER_TILE], scores, then exponentials
    float* largest = weight + HEADS_PER_BLOCK * KEYS_PER_TILE;  // [HEADS_PER_BLOCK]
    float* total = largest + HEADS_PER_BLOCK;              // [HEADS_PER_BLOCK]
    float* rescale = total + HEADS_PER_BLOCK;              // [HEADS_PER_BLOCK]

    const int first_head = blockIdx.x * HEADS_PER_BLOCK, node = blockIdx.y, request = blockIdx.z;
    const int heads_here = min(HEADS_PER_BLOCK, heads - first_head);
    const int keys = prefix + q_len;
    const long long row = ((long long)request * q_len + node) * heads + first_head;
    const float* keys_of_request = kv + (long long)request * keys * WIDTH;
    const unsigned char* seen = visible + ((long long)request * q_len + node) * q_len;

    for (int i = threadIdx.x; i < HEADS_PER_BLOCK * WIDTH; i += blockDim.x)
        query[i / WIDTH * PITCH + i % WIDTH] = i < heads_here * WIDTH ? q[row * WIDTH + i] : 0.0f;
    for (int i = threadIdx.x; i < HEADS_PER_BLOCK * LATENT; i += blockDim.x) sum[i] = 0.0f;
    if (threadIdx.x < HEADS_PER_BLOCK) {
        largest[threadIdx.x] = -CUDART_INF_F;
        total[threadIdx.x] = 0.0f;
    }

    for (int first = 0; first < keys; first += KEYS_PER_TILE) {
        const int here = min(KEYS_PER_TILE, keys - first);
        for (int i = threadIdx.x; i < KEYS_PER_TILE * WIDTH; i += blockDim.x)
            tile[i / WIDTH * PITCH + i % WIDTH] = i < here * WIDTH ? keys_of_request[(long long)first * WIDTH + i] : 0.0f;
        __syncthreads();

        if (threadIdx.x < HEADS_PER_BLOCK * KEYS_PER_TILE) {  // a thread a (head, key)
            const int h = threadIdx.x / KEYS_PER_TILE, k = threadIdx.x % KEYS_PER_TILE, j = first + k;
            float score = -CUDART_INF_F;
            if (k < here && (j < prefix || seen[j - prefix])) {
                float dot = 0.0f;
                for (int d = 0; d < WIDTH; ++d) dot += query[h * PITCH + d] * tile[k * PITCH + d];
                score = dot * scale;
            }
            weight[threadIdx.x] = score;
        }
        __syncthreads();

        if (threadIdx.x < HEADS_PER_BLOCK) {  // a thread a head: the online update
            const int h = threadIdx.x;
            float tile_largest = largest[h];
            for (int k = 0; k < KEYS_PER_TILE; ++k) tile_largest = fmaxf(tile_largest, weight[h * KEYS_PER_TILE + k]);
            // No key seen yet: subtract 0 instead of -inf, since -inf - -inf is NaN.
            const float shift = tile_largest == -CUDART_INF_F ? 0.0f : tile_largest;
            const float factor = expf(largest[h] - shift);
            float tile_total = 0.0f;
            for (int k = 0; k < KEYS_PER_TILE; ++k) {
                const float w = expf(weight[h * KEYS_PER_TILE + k] - shift);
                weight[h * KEYS_PER_TILE + k] = w;
                tile_total += w;
            }
            total[h] = total[h] * factor + tile_total;
            largest[h] = tile_largest;
            rescale[h] = factor;
        }
        __syncthreads();

        for (int i = threadIdx.x; i < HEADS_PER_BLOCK * LATENT; i += blockDim.x) {
            const int h = i / LATENT, d = i % LATENT;
            float value = sum[i] * rescale[h];
            for (int k = 0; k < KEYS_PER_TILE; ++k) {
                // A hidden key may hold anything, NaN too, and 0 * NaN is NaN: skip it, do not trust its weight of 0.
                const float w = weight[h * KEYS_PER_TILE + k];
                if (w != 0.0f) value += w * tile[k * PITCH + d];
            }
            sum[i] = value;
        }
        __syncthreads();
    }

    // A row that sees nothing: zeros and -inf. One that sees a NaN: NaN, for its total is not 0.
    for (int i = threadIdx.x; i < heads_here * LATENT; i += blockDim.x)
        out[row * LATENT + i] = total[i / LATENT] == 0.0f ? 0.0f : sum[i] / total[i / LATENT];
    if (threadIdx.x < heads_here) lse[row + threadIdx.x] = largest[threadIdx.x] + logf(total[threadIdx.x]);
}
