// Ceilings, copy: how fast DRAM can be read and written at once, byte for byte.
//
// Computes out[i] = x[i].
// How: four 16-byte loads of a thread in flight, then four stores; one block 16 KiB, no loop.
// Limits: DRAM, which loses time whenever it turns from reading to writing. Read the hot time, as for 01_write.cu.

constexpr int THREADS = 256, QUADS = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
copy_all(const float4* __restrict__ x, float4* __restrict__ out) {
    const unsigned first = blockIdx.x * (THREADS * QUADS) + threadIdx.x;
    float4 value[QUADS];
#pragma unroll
    for (int k = 0; k < QUADS; ++k) value[k] = x[first + k * THREADS];
#pragma unroll
    for (int k = 0; k < QUADS; ++k) out[first + k * THREADS] = value[k];
}
