// Ceilings, triad: how fast DRAM serves two streams in and one out.
//
// Computes out[i] = x[i] + a * y[i].
// How: as 02_copy.cu, with the loads of both inputs in flight before the first FMA.
// Limits: DRAM; 2 FLOPs for 12 bytes. Read the hot time, as for 01_write.cu.

constexpr int THREADS = 256, QUADS = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
triad(const float4* __restrict__ x, const float4* __restrict__ y, float4* __restrict__ out, float a) {
    const unsigned first = blockIdx.x * (THREADS * QUADS) + threadIdx.x;
    float4 u[QUADS], v[QUADS];
#pragma unroll
    for (int k = 0; k < QUADS; ++k) {
        u[k] = x[first + k * THREADS];
        v[k] = y[first + k * THREADS];
    }
#pragma unroll
    for (int k = 0; k < QUADS; ++k)
        out[first + k * THREADS] = make_float4(fmaf(a, v[k].x, u[k].x), fmaf(a, v[k].y, u[k].y), fmaf(a, v[k].z, u[k].z),
                                               fmaf(a, v[k].w, u[k].w));
}
