// Sum and largest value of an array, with bugs to switch on: -DBUG=n plants bug n, BUG 0 is right.
//
// Each block of 256 threads reduces its share through shuffles and shared memory and publishes a partial result; the block that
// draws the last ticket combines them (fence, then atomic; atomic, then fence). ticket begins as 0.
// A line marked `bug n` is where bug n must be reported; `bug n other` is the other access of a race.
// STYLE: 0 both sides fence; 1 as NVIDIA's programming guide writes it: only the writer fences, the reader's data are volatile;
//        2 a grid barrier instead of the last ticket: needs all blocks resident; 3 blocks that return early before a barrier.

#ifndef BUG
#define BUG 0
#endif
#ifndef STYLE
#define STYLE 0
#endif

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = 8;

__device__ float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) {
#if BUG == 9
        value += __shfl_xor_sync(__activemask(), value, step);  // bug 9
#else
        value += __shfl_xor_sync(ALL, value, step);  // bug 11
#endif
    }
    return value;
}

// The largest of 32 values of one warp, through shared memory as one did before shuffles.
__device__ float warp_largest(float value, float* row, int lane) {
    row[lane] = value;  // bug 1 other, bug 2 other
#if BUG == 1
    value = __shfl_sync(ALL, value, lane);  // brings the lanes together, but orders no memory
#elif BUG != 2
    __syncwarp();
#endif
    for (int step = 16; step > 0; step /= 2) {
        const float other = row[lane ^ step];  // bug 1, bug 2, bug 3
#if BUG != 3
        __syncwarp();
#endif
        row[lane] = value = fmaxf(value, other);  // bug 3 other
        __syncwarp();
    }
    return value;
}

__device__ float read(const float* place) {
#if BUG == 4
    return __ldg(place);  // bug 4
#elif STYLE == 1
    return *const_cast<const volatile float*>(place);
#else
    return *place;  // bug 5, bug 6, bug 7
#endif
}

extern "C" __global__ void reduce(const float* data, float* sums, float* tops, unsigned* ticket, float* out, int n) {
    __shared__ float row[WARPS][32];
    __shared__ float of_warp[32];
    __shared__ unsigned drawn;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#if STYLE == 3
    const int warps = min(WARPS, (n - (int)(blockIdx.x * blockDim.x) + 31) / 32);  // whole warps leave: n is a multiple of 32
    if (warp >= warps) return;
#else
    constexpr int warps = WARPS;
#endif
#if BUG == 8
    if (blockIdx.x == 0 && threadIdx.x == 0) *ticket = 0;  // bug 8: others may have drawn already
#endif
    float sum = 0.0f, top = -1e30f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += data[i];
        top = fmaxf(top, data[i]);
    }
#if BUG == 11
    if (lane < 24) sum = warp_sum(sum);
#else
    sum = warp_sum(sum);
#endif
    top = warp_largest(top, row[warp], lane);

#if BUG == 13
    if (lane == 0) {
        of_warp[warp] = sum;
        __syncthreads();  // bug 13
    }
    __syncthreads();  // bug 13 too
#elif BUG == 14
    if (lane == 0) of_warp[warp] = sum;
    if (warp < 4) __syncthreads();  // bug 14
    __syncthreads();  // bug 14 too
#else
    if (lane == 0) of_warp[warp] = sum;  // bug 15 other
#if BUG != 15
    __syncthreads();
#endif
#endif
#if BUG == 16
    float all = of_warp[lane];  // bug 16: 8 of 32 were written
    all *= lane < warps;
#else
    float all = lane < warps ? of_warp[lane] : 0.0f;  // bug 15, bug 17
#endif
    all = warp_sum(all);
#if BUG != 17
    __syncthreads();
#endif
    if (lane == 0) of_warp[warp] = top;  // bug 17 other
    __syncthreads();
    top = of_warp[lane % warps];
    for (int step = 4; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, step));

#if BUG == 10
    if (threadIdx.x == 32) drawn = 0;  // bug 10 other
#endif
#if BUG == 18
    if (threadIdx.x < 2) sums[blockIdx.x] = all;  // bug 18, bug 18 other: the same value twice is still not defined
    if (threadIdx.x == 0) {
#else
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = all;  // bug 4 other, bug 5 other, bug 6 other, bug 7 other
#endif
        tops[blockIdx.x] = top;  // bug 4 other, bug 5 other, bug 6 other, bug 7 other
#if BUG == 5
#elif BUG == 6
        __threadfence_block();
#else
        __threadfence();
#endif
        drawn = atomicAdd(ticket, 1u);  // bug 8 other, bug 10, bug 19, bug 20 other
#if STYLE == 2
        while (atomicAdd(ticket, 0u) < gridDim.x) __nanosleep(20);  // bug 21
#endif
        if (STYLE != 1 && BUG != 7) __threadfence();
    }
#if BUG != 20
    __syncthreads();
#endif
    const bool last = STYLE == 2 ? blockIdx.x == 0 : drawn == gridDim.x - 1;  // bug 20
    if (last && warp == 0) {
        sum = lane < gridDim.x ? read(&sums[lane]) : 0.0f;
        top = lane < gridDim.x ? read(&tops[lane]) : -1e30f;
#if BUG == 12
        if (lane >= 16) return;
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0x0000ffffu, sum, step);  // bug 12
#else
        sum = warp_sum(sum);
#endif
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, step));  // bug 12
#if BUG == 22
        if (sum != 0.0f && lane == 5) __trap();  // bug 22
#endif
        if (lane == 0) {
            out[0] = sum;
#if BUG != 23
            out[1] = top;
#endif
        }
    }
}
