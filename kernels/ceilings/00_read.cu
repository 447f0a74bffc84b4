// Ceilings, read: how fast memory can be read, from DRAM or from L2.
//
// Computes sums[w] = the sum of the elements that warp w of the grid reads. A block reads one chunk of 32 KiB; block b takes
// chunk b mod chunks, so a grid of several times `chunks` blocks reads the same working set again and again, each time on
// other SMs.
// How: 16-byte loads, eight independent ones a thread; they bypass L1 (.cg). One block a chunk, no loop: the block scheduler
//      keeps the SMs full to the end, whatever their number.
// Limits: DRAM where the working set is far larger than L2 and read once; L2 where it fits. One store for 4 KiB read.

constexpr int THREADS = 256, LOADS = 8;

extern "C" __global__ void __launch_bounds__(THREADS)
read_chunks(const float4* __restrict__ x, float* __restrict__ sums, int chunks) {
    const float4* mine = x + (long long)(blockIdx.x % chunks) * (THREADS * LOADS) + threadIdx.x;
    float4 value[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) value[k] = __ldcg(mine + k * THREADS);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < LOADS; ++k) sum += (value[k].x + value[k].y) + (value[k].z + value[k].w);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[blockIdx.x * (THREADS / 32) + threadIdx.x / 32] = sum;
}
