// Ceilings, FP32 FMA: how many float32 multiply-adds the CUDA cores do when nothing else is asked of them.
//
// Computes, a thread, CHAINS chains x <- a * x + b of STEPS steps, and writes the sum of their ends. Starts and b are read from
// `x` [slices, CHAINS + 1, THREADS]; block k takes slice k mod slices. With a just above -1 a chain jumps from one side of
// b / (1 - a) to the other, a little nearer each time: operands keep changing, as those of real work do, and the end has a
// closed form.
// How: 8 independent chains hide the latency of an FMA even without other warps; 32 steps a loop turn keep the loop's own
//      instructions near 1 %.
// Limits: the FMA pipes: one FFMA a cycle and scheduler is all that can issue.

constexpr int THREADS = 256, CHAINS = 8, TURN = 32;

template <int STEPS>
__global__ void __launch_bounds__(THREADS)
fma_chains(const float* __restrict__ x, float* __restrict__ out, float a, int slices) {
    const float* mine = x + (blockIdx.x % slices) * (THREADS * (CHAINS + 1)) + threadIdx.x;
    float chain[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) chain[c] = mine[c * THREADS];
    const float b = mine[CHAINS * THREADS];
#pragma unroll 1
    for (int turn = 0; turn < STEPS / TURN; ++turn) {
#pragma unroll
        for (int step = 0; step < TURN; ++step)
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) chain[c] = fmaf(a, chain[c], b);
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += chain[c];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
