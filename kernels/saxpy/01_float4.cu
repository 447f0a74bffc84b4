// SAXPY, version 1: float4.
//
// Computes what 00_scalar.cu computes; n is a multiple of 4.
// Changed: a thread does four elements with 16-byte loads and stores.
// Should:  ask for the same bytes in a quarter of the instructions; DRAM still decides, so little changes.

extern "C" __global__ void float4_wide(const float4* __restrict__ x, const float4* __restrict__ y, float4* __restrict__ z, float a, int quads) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < quads) {
        const float4 u = x[i], v = y[i];
        z[i] = make_float4(a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w);
    }
}
