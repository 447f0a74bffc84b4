// Block sums: static shared memory, named barriers, shuffles, an atomic, a constant, a header beside the file.
#include <cuda_runtime.h>

#include "warp.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif

__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};

__global__ void __launch_bounds__(BLOCK) reduce(const float* x, float* total, int n) {
    __shared__ float partial[BLOCK / 32];
    float sum = 0;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) sum += x[i] * weights[i % 8];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < BLOCK / 32 ? partial[threadIdx.x] : 0.f);
        if (threadIdx.x == 0) atomicAdd(total, sum);
    }
    asm volatile("barrier.sync 3, %0;" ::"n"(BLOCK));
}

// A local array with a run-time index: a stack, but no spills.
__global__ void look_up(const int* which, float* out) {
    float table[100];
    for (int i = 0; i < which[0]; i++) table[i] = out[i] * i;
    out[threadIdx.x] = table[which[threadIdx.x]] + expf(out[0]);
}
