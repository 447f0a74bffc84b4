// Small kernels on which the two machines must agree: control flow, barriers, collectives, memory of every kind.

extern "C" __global__ void diverge(const int* in, int* out, int n) {  // loops of different lengths, nested branches
    int i = blockIdx.x * blockDim.x + threadIdx.x, total = 0;
    if (i >= n) return;
    for (int k = 0; k < in[i] % 17; ++k) {
        if (k & 1) total += k * in[i]; else total ^= k << (i & 7);
        if (total % 11 == 3) continue;
        if (total > 4000) break;
        total += 3;
    }
    out[i] = total;
}

extern "C" __global__ void shapes(float* out) {  // threads and blocks in three dimensions
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[b * blockDim.x * blockDim.y * blockDim.z + t] = t + 1000.0f * b + 0.5f * threadIdx.z;
}

extern "C" __global__ void tile(const float* in, float* out, int n) {  // transposes through shared memory, with conflicts
    __shared__ float s[32][32];
    int x = blockIdx.x * 32 + threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += blockDim.y) s[y][threadIdx.x] = in[(blockIdx.y * 32 + y) * n + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += blockDim.y) out[(blockIdx.x * 32 + y) * n + blockIdx.y * 32 + threadIdx.x] = s[threadIdx.x][y];
}

extern "C" __global__ void named(int* out) {  // two groups of warps with barriers of their own, then all
    __shared__ int s[128];
    int t = threadIdx.x, group = t / 64;
    s[t] = t * t;
    if (group == 0) asm volatile("bar.sync 1, 64;" ::: "memory"); else asm volatile("bar.sync 2, 64;" ::: "memory");
    int other = s[group * 64 + (63 - t % 64)];
    __syncthreads();
    s[t] = other;
    __syncthreads();
    out[blockIdx.x * 128 + t] = s[(t + 64) % 128];
}

extern "C" __global__ void hand_over(int* out) {  // producer warp arrives, consumer warp waits
    __shared__ int s[32];
    int t = threadIdx.x;
    if (t < 32) { s[t] = 7 * t; asm volatile("bar.arrive 3, 64;" ::: "memory"); }
    else { asm volatile("bar.sync 3, 64;" ::: "memory"); out[blockIdx.x * 32 + t - 32] = s[63 - t]; }
}

extern "C" __global__ void votes(const int* in, int* out) {  // shuffles, votes, matches, reductions
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], lane = threadIdx.x & 31;
    int a = __shfl_xor_sync(~0u, v, 5), b = __shfl_up_sync(~0u, v, 3), c = __shfl_down_sync(~0u, v, 2, 8);
    int d = __shfl_sync(~0u, v, v & 31), e = __ballot_sync(~0u, v & 1), f = __any_sync(~0u, v > 90) + 2 * __all_sync(~0u, v >= 0);
    int g = __match_any_sync(~0u, v & 3), h = __reduce_add_sync(~0u, v);
    if (lane < 14) a += __shfl_xor_sync(0x3fff, v, 1, 4);
    if (v & 4) { unsigned m = __ballot_sync(__activemask(), v & 8); g += __popc(m); }
    out[i] = a + 3 * b + 5 * c + 7 * d + 11 * e + 13 * f + 17 * g + 19 * h;
}

extern "C" __global__ void counted(const int* in, int* out) {  // __syncthreads_count, _and, _or
    int v = in[blockIdx.x * blockDim.x + threadIdx.x];
    int a = __syncthreads_count(v & 1), b = __syncthreads_and(v >= 0), c = __syncthreads_or(v == 77);
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + 1000 * b + 10000 * c;
}

extern "C" __global__ void atomics(const int* in, int* sums, float* fsum, unsigned long long* big, int n) {
    __shared__ int h[8];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t < 8) h[t] = 0;
    __syncthreads();
    if (i < n) {
        atomicAdd(&h[in[i] & 7], in[i]);
        atomicMax(&sums[8], in[i]); atomicMin(&sums[9], in[i]); atomicXor(&sums[10], in[i] * 77);
        atomicAdd(fsum, 0.25f * in[i]); atomicAdd(big + (i & 1), 1ull << (in[i] & 40));
        atomicCAS(&sums[11], 0, 77); if (atomicCAS(&sums[12], 55, in[i]) == 55) sums[12] = i;
        atomicInc((unsigned*)&sums[13], 6u); atomicExch(&sums[14], 5); atomicAdd((double*)(big + 2), 0.5);
    }
    __syncthreads();
    if (t < 8) atomicAdd(&sums[t], h[t]);
}

extern "C" __global__ void widths(const unsigned char* in, unsigned char* out, int n) {  // 1, 2, 4, 8, 16 bytes a lane; strides
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ double2 s[64];
    if (i < n) {
        out[i] = in[i] + 1;
        ((short*)(out + n))[i] = ((const short*)in)[i] * 3;
        ((int2*)(out + 3 * n))[i] = ((const int2*)in)[i * 7 % n / 8];
        float4 v = ((const float4*)in)[i / 16];
        v.x = v.w + 1.0f;
        ((float4*)(out + 11 * n))[i] = v;
    }
    s[threadIdx.x] = ((const double2*)in)[(threadIdx.x * 5) & 15];
    __syncthreads();
    double2 w = s[(threadIdx.x * 3) & 63];
    if (i < n) ((double2*)(out + 27 * n))[i] = w;
    if (i < n) ((double*)(out + 43 * n))[i] = s[threadIdx.x / 2].x;
}

__device__ int table[40];
__constant__ int numbers[16];

extern "C" __global__ void local(const int* in, int* out, int n) {  // local memory, generic pointers, constants, globals
    __shared__ int s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x, keep[8];
    for (int k = 0; k < 8; ++k) keep[(k * 3 + i) & 7] = k * i + numbers[k & 15];
    s[threadIdx.x] = in[i % n];
    __syncthreads();
    int* p = (i & 3) == 0 ? keep : (i & 3) == 1 ? &s[8] : (i & 3) == 2 ? out + n : table;
    int v = p[i & 7];
    if (i < n) out[i] = v + keep[i & 7] + table[i % 40];
}

extern "C" __global__ void spin(int* flags, int* out) {  // each block waits for the next one, lanes for each other
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        int next = (blockIdx.x + 1) % gridDim.x;
        if (next == 0) { atomicExch(&flags[0], 1); }
        if (blockIdx.x + 1 < gridDim.x) { while (atomicAdd(&flags[next], 0) == 0) {} }
        else atomicExch(&flags[gridDim.x - 1], 1);
        __threadfence();
        if (blockIdx.x > 0) atomicExch(&flags[blockIdx.x], 1);
        out[blockIdx.x] = 10 + blockIdx.x;
        ready = 1;
    } else if (threadIdx.x == 33) { while (!ready) {} out[gridDim.x + blockIdx.x] = 5; }
}

extern "C" __global__ void lock(int* mutex, int* out) {  // lanes of one warp wait for each other
    bool done = false;
    while (!done) {
        if (atomicCAS(mutex, 0, 1) == 0) {
            out[0] = out[0] * 3 + threadIdx.x; __threadfence(); atomicExch(mutex, 0); done = true;
        }
    }
}

extern "C" __global__ void arithmetic(const float* a, const int* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = a[(i + 1) % n];
    int u = b[i], v = b[(i + 3) % n];
    float z = x / y + sqrtf(fabsf(x)) + __expf(y * 0.1f) + rsqrtf(fabsf(y) + 1.0f) + fmaf(x, y, 2.0f);
    z += (float)(u / (v | 1)) + (float)(u % (v | 1)) + (float)__popc(u) + (float)__clz(v) + (float)(u >> (v & 31));
    z += (float)((double)x * y) + (float)((long long)u * v >> 7) + (float)__brev(u) * 1e-9f + fminf(x, y) + floorf(x) + rintf(y);
    out[i] = z;
}

#include <cuda_fp16.h>
extern "C" __global__ void halves(const __half* a, __half* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half x = a[i], y = a[n - 1 - i];
    __half2 p = __halves2half2(x, y);
    p = __hfma2(p, p, p);
    out[i] = __hadd(__low2half(p), __hmul(y, __high2half(p)));
}

extern "C" __global__ void speak(int n) {
    if (threadIdx.x < n) printf("block %d thread %d: %5.2f %s\n", blockIdx.x, threadIdx.x, 0.5 * threadIdx.x, "yes");
}

// ---------------------------------------------------------------- faults
extern "C" __global__ void outside(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i + 3];
    if (threadIdx.x == 5) *(int*)((char*)out + 4 * i + 2) = 1;
}

extern "C" __global__ void apart(int* out) {
    if (threadIdx.x < 16) __syncthreads(); else { out[threadIdx.x] = 1; __syncthreads(); }
    out[blockIdx.x * blockDim.x + threadIdx.x] = 2;
}

extern "C" __global__ void skipped(int* out) {
    if (threadIdx.x >= 40) { out[threadIdx.x] = 1; return; }
    __syncthreads();
    out[threadIdx.x] = 2;
}

extern "C" __global__ void racy(int* out) {
    __shared__ int s[96];
    s[threadIdx.x] = threadIdx.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] = s[95 - threadIdx.x];
    if (blockIdx.x == 0 || threadIdx.x == 3) out[threadIdx.x] = 9;
}

extern "C" __global__ void unknown(const int* __restrict__ in, int* out, int n) {
    __shared__ int s[64];
    int x;
    if (n > 100) x = in[0];
    if (threadIdx.x & 1) s[threadIdx.x] = 4;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x] + x + __ldg(in + threadIdx.x);
    if (threadIdx.x == 0) *(int*)in = 3;
}

extern "C" __global__ void missing(int* out) {
    int v = threadIdx.x;
    if (threadIdx.x & 1) v = __shfl_xor_sync(0xaaaaaaaa, v, 1);
    if (threadIdx.x < 8) v += __shfl_sync(0xffff, v, 3); else __syncthreads();
    out[threadIdx.x] = v;
}

extern "C" __global__ void stuck(int* out) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory"); else asm volatile("bar.sync 2, 64;" ::: "memory");
    out[threadIdx.x] = 1;
}

extern "C" __global__ void endless(volatile int* flag, int* out) {
    while (*flag == 0) {}
    out[threadIdx.x] = 1;
}

extern "C" __global__ void runs_on(unsigned* out, int never) {
    unsigned x = threadIdx.x;
    do x = x * 5 + (x >> 7); while (x != (unsigned)never * 3 + 1 || never == 5);
    out[threadIdx.x] = x;
}

extern "C" __global__ void stops(int* out) {
    out[threadIdx.x] = 1;
    if (threadIdx.x == 7) asm volatile("trap;");
}
