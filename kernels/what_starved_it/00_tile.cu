// What starved the head tile? Its loop with everything that was a suspect as a parameter.
//
// Computes: parts of tree-masked MLA verify attention, as verify_attention's 03_kv_split.cu does; join_parts joins them.
//
// Changed: nothing of the loop. PAD floats follow each row of query and keys in shared memory: 0 as in 01_head_tile.cu, 4 as in
//          02_padded_rows.cu. The launch chooses the parts and how much shared memory a block takes beyond what it uses, and
//          with it how many blocks share an SM. HEADS_PER_BLOCK and KEYS_PER_TILE shrink the block itself.
// Should:  be as fast as 01 and 02 at one part, so that what it says of the suspects holds for them.
// Limits:  whatever the parameters make it: that is the question.

#include <math_constants.h>

#include "../verify_attention/parts.cuh"

template <int LATENT, int ROPE, int HEADS_PER_BLOCK, int KEYS_PER_TILE, int PAD>
__global__ void __launch_bounds__(256)
tiled(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
      const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
      const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
      float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
      float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
      int heads, int q_len, int prefix, float scale, int parts, int keys_per_part) {
    constexpr int WIDTH = LATENT + ROPE, PITCH = WIDTH + PAD;
    extern __shared__ float shared[];
    float* query = shared;                                 // [HEADS_PER_BLOCK, PITCH]
    float* tile = query + HEADS_PER_BLOCK * PITCH;         // [KEYS_PER_TILE, PITCH]
    float* sum = tile + KEYS_PER_TILE * PITCH;             // [HEADS_PER_BLOCK, LATENT], not yet divided by total
    float* weight = sum + HEADS_PER_BLOCK * LATENT;        // [HEADS_PER_BLOCK, KEYS_PER_TILE], scores, then exponentials
    float* largest = weight + HEADS_PER_BLOCK * KEYS_PER_TILE;  // [HEADS_PER_BLOCK]
    float* total = largest + HEADS_PER_BLOCK;              // [HEADS_PER_BLOCK]
    float* rescale = total + HEADS_PER_BLOCK;              // [HEADS_PER_BLOCK]

    const int first_head = blockIdx.x * HEADS_PER_BLOCK, node = blockIdx.y, request = blockIdx.z / parts, part = blockIdx.z % parts;
    const int heads_here = min(HEADS_PER_BLOCK, heads - first_head);
    const int keys = prefix + q_len;
    const int begin = part * keys_per_part, end = min(begin + keys_per_part, keys);
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

    for (int first = begin; first < end; first += KEYS_PER_TILE) {
        const int here = min(KEYS_PER_TILE, end - first);
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

    for (int i = threadIdx.x; i < heads_here * LATENT; i += blockDim.x)
        part_sum[((row + i / LATENT) * parts + part) * LATENT + i % LATENT] = sum[i];
    if (threadIdx.x < heads_here)
        part_stats[(row + threadIdx.x) * parts + part] = make_float2(largest[threadIdx.x], total[threadIdx.x]);
}
