// MLA verify attention, version 0: naive.
//
// Computes, for every request b, draft node i and head h, with K = kv[b] (LATENT + ROPE wide) and V = its first LATENT columns:
//     s[j] = scale * <q[b,i,h,:], K[j,:]>            for every key j that node i sees
//     out[b,i,h,:] = sum_j softmax(s)[j] * V[j,:]      lse[b,i,h] = ln sum_j exp(s[j])
// Keys 0 .. prefix-1 are seen by every node; key prefix + j is draft node j, seen where visible[b,i,j] is not 0.
//
// How: one block a (head, node, request); the whole score row lives in shared memory; two passes over the keys.
// Pass 1, a thread a key: 576 scalar loads each, a row apart from its neighbour's. Pass 2, a thread a latent column: coalesced.
// Limits: each block reads all keys twice, a load per FMA; the score row must fit in shared memory.

#include <math_constants.h>

template <typename Combine>
__device__ float block_reduce(float value, float* warp_values, Combine combine) {
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (lane == 0) warp_values[warp] = value;
    __syncthreads();
    value = warp_values[lane < warps ? lane : 0];  // lanes past the last warp repeat warp 0: harmless for max, masked below for +
    if (lane >= warps) value = combine.identity();
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();  // warp_values may be used again
    return value;
}

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ float identity() const { return -CUDART_INF_F; }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
    __device__ float identity() const { return 0.0f; }
};

template <int LATENT, int ROPE>
__global__ void __launch_bounds__(256)
naive(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
      const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
      const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
      float* __restrict__ out,                    // [batch, q_len, heads, LATENT]
      float* __restrict__ lse,                    // [batch, q_len, heads], natural logarithm
      int heads, int q_len, int prefix, float scale) {
    constexpr int WIDTH = LATENT + ROPE;
    extern __shared__ float scores[];  // [prefix + q_len]
    __shared__ float query[WIDTH];
    __shared__ float warp_values[32];

    const int head = blockIdx.x, node = blockIdx.y, request = blockIdx.z;
    const int keys = prefix + q_len;
    const long long row = ((long long)request * q_len + node) * heads + head;
    const float* keys_of_request = kv + (long long)request * keys * WIDTH;
    const unsigned char* seen = visible + ((long long)request * q_len + node) * q_len;

    for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) query[d] = q[row * WIDTH + d];
    __syncthreads();

    float largest = -CUDART_INF_F;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        float score = -CUDART_INF_F;
        if (j < prefix || seen[j - prefix]) {
            const float* key = keys_of_request + (long long)j * WIDTH;
            float dot = 0.0f;
            for (int d = 0; d < WIDTH; ++d) dot += query[d] * key[d];
            score = dot * scale;
        }
        scores[j] = score;
        largest = fmaxf(largest, score);
    }
    largest = block_reduce(largest, warp_values, Max());
    const float shift = largest == -CUDART_INF_F ? 0.0f : largest;  // a row that sees no key: -inf - -inf is NaN

    float total = 0.0f;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        const float weight = expf(scores[j] - shift);  // a hidden key: exp(-inf) = 0
        scores[j] = weight;
        total += weight;
    }
    total = block_reduce(total, warp_values, Sum());  // its barriers also publish scores[]

    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;  // a row that sees nothing: zeros and -inf
    for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
        float sum = 0.0f;
        for (int j = 0; j < keys; ++j) {
            // A hidden key may hold anything, NaN too, and 0 * NaN is NaN: skip it, do not trust its weight of 0.
            if (scores[j] != 0.0f) sum += scores[j] * keys_of_request[(long long)j * WIDTH + d];
        }
        out[row * LATENT + d] = sum * inverse;
    }
    if (threadIdx.x == 0) lse[row] = largest + logf(total);
}
