// 64 live values in at most 32 registers: spills.
__global__ void __launch_bounds__(1024, 2) spill(const float* a, float* out, int n) {
    float r[64];
#pragma unroll
    for (int i = 0; i < 64; i++) r[i] = a[i * n + threadIdx.x];
#pragma unroll
    for (int k = 0; k < 64; k += 16)
#pragma unroll
        for (int i = 0; i < 64; i++) r[i] = fmaf(r[(i * 5 + k) % 64], r[k], r[i]);
#pragma unroll
    for (int i = 0; i < 64; i++) out[i * n + threadIdx.x] = r[i];
}
