// Ceilings, mma.sync: how many FLOPs the tensor cores do through mma.sync with float32 accumulators, operands in registers.
//
// Computes, a warp, out[w] = STEPS * (A0 + A1) @ (B0 + B1 + B2 + B3), a tile of 16 x 8: eight accumulators, one a pair
// (Ai, Bj), each get STEPS times Ai @ Bj added, and are summed at the end. a [slices, 2, 16, K], b [slices, 4, K, 8] in
// float32; warp w takes slice w mod slices. Operands lose the bits their type has no room for: cut off (bfloat16, tf32) or
// rounded (float16).
// K is 16 (bfloat16, float16: m16n8k16) or 8 (tf32: m16n8k8).
// How: eight independent accumulators a warp, eight warps a block; nothing but mma in the loop.
// Limits: the tensor cores as mma.sync reaches them. On sm_90 and sm_100 that is not all of them: wgmma and tcgen05 do more, so
//         the roof of a matrix product there is cuBLAS's, not this one.

constexpr int THREADS = 256, WARPS = THREADS / 32, AS = 2, BS = 4;
enum Type { BFLOAT16, FLOAT16, TF32 };

__device__ unsigned pair(Type type, float low, float high) {  // two neighbours along K in one register
    unsigned both;
    if (type == FLOAT16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        both = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
    return both;
}

__device__ unsigned cut(float value) { return __float_as_uint(value) & 0xffffe000u; }  // tf32 keeps 10 bits of mantissa

template <Type TYPE>
__device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#define MMA(SHAPE_AND_TYPES)                                                                                            \
    asm volatile("mma.sync.aligned." SHAPE_AND_TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"           \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if (TYPE == BFLOAT16) MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    if (TYPE == FLOAT16) MMA("m16n8k16.row.col.f32.f16.f16.f32");
    if (TYPE == TF32) MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#undef MMA
}

template <Type TYPE, int STEPS>
__global__ void __launch_bounds__(THREADS)
mma_loop(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int slices) {
    constexpr int K = TYPE == TF32 ? 8 : 16;
    const int warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    a += (warp % slices) * (AS * 16 * K);
    b += (warp % slices) * (BS * K * 8);

    // Who holds what: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... mma.m16n8k8".
    unsigned left[AS][4], right[BS][2];
#pragma unroll
    for (int i = 0; i < AS; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const float* row = a + (i * 16 + group + 8 * (r % 2)) * K + (r / 2) * (K / 2);
            left[i][r] = TYPE == TF32 ? cut(row[place]) : pair(TYPE, row[2 * place], row[2 * place + 1]);
        }
#pragma unroll
    for (int j = 0; j < BS; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float* column = b + (j * K + r * (K / 2)) * 8 + group;
            right[j][r] = TYPE == TF32 ? cut(column[8 * place]) : pair(TYPE, column[16 * place], column[16 * place + 8]);
        }

    float sum[AS][BS][4] = {};
#pragma unroll 4
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < AS; ++i)
#pragma unroll
            for (int j = 0; j < BS; ++j) mma<TYPE>(sum[i][j], left[i], right[j]);

#pragma unroll
    for (int r = 0; r < 4; ++r) {
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < AS; ++i)
#pragma unroll
            for (int j = 0; j < BS; ++j) all += sum[i][j][r];
        out[warp * 128 + (group + 8 * (r / 2)) * 8 + 2 * place + r % 2] = all;
    }
}
