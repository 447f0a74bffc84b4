// MLA verify attention, version 9: register banks.
//
// Computes what 00_naive.cu computes: out and natural log-sum-exp of tree-masked attention over a latent KV cache.
//
// Changed: the loop of 08_register_tile.cu, written so that ptxas lays the three operands of an FFMA into both banks of registers
//          more often. The sums leave through a multiply by one, so that they need not lie in the aligned quads of the stores, where
//          the sum of column x and the x of a key both have an even number; a turn of the loop over keys does one key, not two.
// Should:  lift some of what holds the register tile: with one operand a bank and clock, its loops read two operands of one bank in
//          most FFMA, and can issue 0.66 of them a clock; these 0.75. The study what_held_it measures 12 ways to write the loop.
// Limits:  as 08_register_tile.cu, 16-byte boundaries too; 254 registers a thread.

#include "register_tile.cuh"

template <int LATENT, int ROPE, int WARPS, int TOTALS, int SCORES, int KEYS_AT_ONCE, bool FREE>
__global__ void __launch_bounds__(WARPS * 32, 1)
register_banks(const float* __restrict__ q,                // [batch, q_len, heads, LATENT + ROPE]
               const float* __restrict__ kv,               // [batch, prefix + q_len, LATENT + ROPE]
               const unsigned char* __restrict__ visible,  // [batch, q_len, q_len]
               float* __restrict__ part_sum,               // [batch, q_len, heads, parts, LATENT], see parts.cuh
               float2* __restrict__ part_stats,            // [batch, q_len, heads, parts]
               int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    attend<TOTALS, SCORES, KEYS_AT_ONCE, FREE, LATENT, ROPE, WARPS, Together<(LATENT + ROPE) / 4>>(
        q, visible, part_sum, part_stats, heads, q_len, prefix, scale, parts, tiles_per_part, kv);
}

// The same on a cache in pages of PAGE rows.
template <int LATENT, int ROPE, int WARPS, int TOTALS, int SCORES, int KEYS_AT_ONCE, bool FREE, int PAGE>
__global__ void __launch_bounds__(WARPS * 32, 1)
register_banks_paged(const float* __restrict__ q,
                     const float* __restrict__ kv,        // [pages of the pool, PAGE, LATENT + ROPE]
                     const int* __restrict__ page_table,  // [batch, ceil((prefix + q_len) / PAGE)]
                     const unsigned char* __restrict__ visible, float* __restrict__ part_sum, float2* __restrict__ part_stats,
                     int heads, int q_len, int prefix, float scale, int parts, int tiles_per_part) {
    attend<TOTALS, SCORES, KEYS_AT_ONCE, FREE, LATENT, ROPE, WARPS, InPages<(LATENT + ROPE) / 4, PAGE>>(
        q, visible, part_sum, part_stats, heads, q_len, prefix, scale, parts, tiles_per_part, kv, page_table);
}
