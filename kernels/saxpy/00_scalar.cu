// SAXPY, version 0: scalar.
//
// Computes y[i] = a * x[i] + y[i] into z[i], i < n; a thread an element, 4-byte loads.
// Limits: DRAM. 12 bytes move for 2 FLOPs, so any GPU waits for memory.

extern "C" __global__ void scalar(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + y[i];
}
