// Kernels with one fault each, and a good one, to show that a fault ends the worker and nothing else.

extern "C" __global__ void good(float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1.0f;
}

extern "C" __global__ void out_of_bounds(float* y, int n) {
    y[(1ll << 40) + threadIdx.x] = 1.0f;
}

extern "C" __global__ void trap(float* y, int n) {
    if (threadIdx.x == 3) __trap();
    y[threadIdx.x] = 1.0f;
}

// Ends by itself after a minute, so that no GPU stays taken.
extern "C" __global__ void hang(float* y, int n) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < 60000000000ll);
    y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void hungry(float* y, int n, float* scratch) {
    y[threadIdx.x] = scratch[0];
}
