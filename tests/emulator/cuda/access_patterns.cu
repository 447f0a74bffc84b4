// Kernels whose traffic can be derived on paper: tests/emulator/test_access_patterns.py holds the derivations.
//
// Every buffer begins at a multiple of 512 bytes, so sectors (32 B) are counted from each buffer's start.

#include <cuda_fp16.h>

struct Point {  // 12 bytes, aligned to 4: no vector load can fetch it
    float x, y, z;
};

__device__ int global_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// ------------------------------------------------------------ global memory
template <typename T>
__global__ void load_stride(const T* in, T* out, int stride, int offset, int lanes) {
    const int i = global_index();
    if (i < lanes) out[i] = in[i * stride + offset];
}

template <typename T>
__global__ void store_stride(T* out, int stride, int offset, int lanes) {
    const int i = global_index();
    if (i < lanes) out[i * stride + offset] = T();
}

extern "C" __global__ void load_every(const float* in, float* out, int step) {
    const int i = threadIdx.x;
    if (i % step == 0) out[i] = in[i];
}

extern "C" __global__ void first_field(const float4* in, float* out) {
    out[threadIdx.x] = in[threadIdx.x].x;
}

extern "C" __global__ void structs(const Point* in, float* out) {
    const Point p = in[threadIdx.x];
    out[threadIdx.x] = p.x + p.y + p.z;
}

extern "C" __global__ void gather(const int* index, const float* in, float* out) {
    const int i = global_index();
    out[i] = in[index[i]];
}

extern "C" __global__ void same_for_all_blocks(const float* in, float* out) {
    out[global_index()] = in[threadIdx.x];
}

extern "C" __global__ void increment(float* data) {
    data[global_index()] += 1.0f;
}

extern "C" __global__ void write_then_read(volatile float* data) {
    data[threadIdx.x] = 2.0f;
    if (data[threadIdx.x] != 2.0f) __trap();
}

extern "C" __global__ void divergent_trips(const float* in, float* out) {
    const int lane = threadIdx.x;
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k <= lane / 8; ++k) sum += in[k * 32 + lane];
    out[lane] = sum;
}

extern "C" __global__ void two_ways(const float* in, float* out) {
    const int lane = threadIdx.x;
    if (lane % 2) {
        out[lane] = in[lane] * sqrtf(in[lane + 32]);  // long enough that both sides stay branches
    } else {
        out[lane] = in[lane + 64];
    }
}

extern "C" __global__ void block_3d(const float* in, float* out) {
    const int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[i] = in[i];
}

extern "C" __global__ void transposed(const float* in, float* out) {  // block (32, n), in is [32, n] by rows
    const int i = threadIdx.x + blockDim.x * threadIdx.y;
    out[i] = in[threadIdx.x * blockDim.y + threadIdx.y];
}

extern "C" __global__ void histogram(const int* in, unsigned* bins) {
    atomicAdd(&bins[in[threadIdx.x]], 1u);
}

extern "C" __global__ void counter(unsigned* next, unsigned* out) {
    out[threadIdx.x] = atomicAdd(&next[threadIdx.x], 1u);
}

extern "C" __global__ void fused(const float* in, float* out) {  // FLOPs a thread: an FMA, an addition, a product
    const float x = in[threadIdx.x];
    out[threadIdx.x] = __fmul_rn(__fadd_rn(__fmaf_rn(x, x, 2.0f), x), 3.0f);
}

extern "C" __global__ void half_of_each(const float* in, float* out) {  // a generic load: half a warp each from two memories
    __shared__ float near[32];
    const int lane = threadIdx.x;
    near[lane] = 1.0f;
    __syncthreads();
    const float* from = lane < 16 ? near : in;
    out[lane] = from[lane];
}

// ------------------------------------------------------------ shared memory
template <typename T>
__global__ void shared_load(T* out, int stride, int offset, int lanes) {
    extern __shared__ __align__(16) unsigned char bytes[];
    T* data = reinterpret_cast<T*>(bytes);
    for (int i = threadIdx.x; i < 32 * max(stride, 1) + offset; i += blockDim.x) data[i] = T();
    __syncthreads();
    const int i = threadIdx.x;
    if (i < lanes) out[i] = data[i * stride + offset];
}

template <typename T>
__global__ void shared_store(int stride, int lanes) {
    extern __shared__ __align__(16) unsigned char bytes[];
    if (threadIdx.x < lanes) reinterpret_cast<T*>(bytes)[threadIdx.x * stride] = T();
    __syncthreads();
    if (bytes[0]) __trap();  // somebody reads it, so the stores stay
}

template <int PITCH>
__global__ void transpose(const float* in, float* out) {  // one 32 x 32 tile, block (32, 32)
    __shared__ float tile[32][PITCH];
    tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
