// Ceilings, copy: how fast DRAM can be read and written at once, byte for byte.
//
// Computes out[i] = x[i].
// How: one 16-byte load and one 16-byte store a thread; no loop. More loads in flight made it slower on an H200 (two: by 3 %,
// four: by 4.5 %, eight: by 4.5 %; bulk copies through shared memory: by 8 %): the more a block reads before it writes, the
// longer the runs of one direction that its stores interrupt.
// Limits: DRAM, which loses time whenever it turns from reading to writing. Read the hot time, as for 01_write.cu.

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
copy_all(const float4* __restrict__ x, float4* __restrict__ out) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    out[i] = x[i];
}
