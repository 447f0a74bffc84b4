// MLA verify attention, version 8: register tile.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: nodes and heads are rows of one matrix, for they all attend to the same keys. A block does WARPS * 8 rows; a warp keeps
//          8 rows: their 8 x LATENT sums in registers, 8 x 16 a lane, and 8 x 4 of the scores of a tile of 16 keys, over an eighth
//          of the columns, summed by shuffles at the end of the tile. Softmax stays inside a warp: two barriers a tile.
// Should:  take 32 multiplies of the scores out of 12 floats loaded, and 128 of the sums out of 24, where one float fed one
//          multiply: the FP32 units become the limit, and a key leaves L2 once for 64 rows.
// Limits:  FP32 FMA; one block of 8 warps an SM, for 189 KB of shared memory and 242 registers a thread (a ninth warp would
//          leave 168); rows beyond a multiple of 64 are padding: 56 of 128 at 8 heads and 9 nodes. sm_120 has no block that large.
//          q and kv must lie on 16-byte boundaries.

#include "register_tile.cuh"

template <int LATENT, int ROPE, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1)
register_tile(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
              const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
              const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
              float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
              float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
              int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    attend<1, 2, 2, false, LATENT, ROPE, WARPS, Together<(LATENT + ROPE) / 4>>(
        q, visible, part_sum, part_stats, heads, q_len, prefix, scale, parts, tiles_per_part, kv);
}
