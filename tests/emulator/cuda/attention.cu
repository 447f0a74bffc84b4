// Attention of one query over keys that blocks share out, with bugs to switch on: -DBUG=n plants bug n, BUG 0 is right.
//
// q [128], k and v [keys, 128]; a block a share of the keys, a warp a key, a lane four columns; online softmax. Each block leaves
// its partial result and raises its flag; block 0 waits for all flags and combines them. flags begin as 0.
// A line marked `bug n` is where bug n must be reported; `bug n other` is the other access of a race.
// STYLE: 0 fences and atomics; 1 st.release and ld.acquire; 2 volatile flags between fences.

#ifndef BUG
#define BUG 0
#endif
#ifndef STYLE
#define STYLE 0
#endif

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = 2, COLUMNS = 128;

__device__ float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL, value, step);  // bug 7
    return value;
}

__device__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

__device__ float4 weighted(float a, float4 u, float b, float4 v) {
    return make_float4(a * u.x + b * v.x, a * u.y + b * v.y, a * u.z + b * v.z, a * u.w + b * v.w);
}

// largest, total and sum of two parts become those of both.
__device__ void join(float& largest, float& total, float4& sum, float other_largest, float other_total, float4 other_sum) {
    const float both = fmaxf(largest, other_largest);
    const float mine = exp2f(largest - both), others = exp2f(other_largest - both);
    total = total * mine + other_total * others;
    sum = weighted(mine, sum, others, other_sum);
    largest = both;
}

__device__ void raise(int* flag) {
#if STYLE == 1
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
#elif STYLE == 2
    __threadfence();
    *const_cast<volatile int*>(flag) = 1;
#else
#if BUG == 1
#elif BUG == 2
    __threadfence_block();
#else
    __threadfence();
#endif
    atomicExch(flag, 1);  // bug 14: it reads what was there, too
#endif
}

__device__ void wait(int* flag) {
#if STYLE == 1
    int up;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(up) : "l"(flag) : "memory");
    while (!up);
#else
#if STYLE == 2
    while (!*const_cast<volatile int*>(flag)) {}
#else
    while (!atomicAdd(flag, 0)) {}  // bug 3, bug 14 too
#endif
    __threadfence();
#endif
}

extern "C" __global__ void attention(const float* q, const float* k, const float* v, float4* part_sum, float2* part_top, int* flags,
                                     float* out, float* lse, int keys, float scale) {
#if BUG == 4
    constexpr int PITCH = COLUMNS + 1;  // the second row begins between two float4
#else
    constexpr int PITCH = COLUMNS;
#endif
    __shared__ __align__(16) float sums[WARPS * PITCH + 3];
    __shared__ float2 tops[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x, splits = gridDim.x;
    const int share = (keys + splits - 1) / splits, first = split * share, end = min(first + share, keys);

#if BUG == 5
    const float4 query = reinterpret_cast<const float4*>(q + 1)[lane];  // bug 5
#else
    const float4 query = reinterpret_cast<const float4*>(q)[lane];
#endif
    float largest = -1e30f, total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if BUG == 6
    for (int j = first + warp; j <= end; j += WARPS) {
#else
    for (int j = first + warp; j < end; j += WARPS) {
#endif
        const float4 key = reinterpret_cast<const float4*>(k)[j * 32 + lane];  // bug 6
#if BUG == 7
        if (lane < 16) largest = fmaxf(largest, 0.0f * warp_sum(lane));
#endif
        const float score = warp_sum(dot(query, key)) * scale;
        const float4 value = reinterpret_cast<const float4*>(v)[j * 32 + lane];  // bug 6
        join(largest, total, sum, score, 1.0f, value);
    }
#if BUG == 8
    if (first >= keys) {  // no keys: nothing to leave, but the flag goes up
        if (threadIdx.x == 0) raise(&flags[split]);
        return;
    }
#endif

    reinterpret_cast<float4*>(&sums[warp * PITCH])[lane] = sum;  // bug 4, bug 9 other
    if (lane == 0) tops[warp] = make_float2(largest, total);  // bug 9 other
#if BUG == 10
    if (warp == 0) asm volatile("bar.sync 1, 96;");  // bug 10: of 64 threads, 32 come
    __syncthreads();
#elif BUG == 11
    if (lane < 16) {
        __syncthreads();  // bug 11
    } else {
        __syncthreads();  // bug 11 too
    }
#elif BUG != 9
    __syncthreads();
#endif
    if (warp != 0) return;
    for (int w = 1; w < WARPS; ++w) {
        const float4 other = reinterpret_cast<const float4*>(&sums[w * PITCH])[lane];  // bug 4, bug 9
        join(largest, total, sum, tops[w].x, tops[w].y, other);  // bug 9
    }
    part_sum[split * 32 + lane] = sum;  // bug 1 other, bug 2 other, bug 12 other
#if BUG == 13
    if (lane == 0) part_top[0] = make_float2(largest, total);  // bug 13, bug 13 other
#else
    if (lane == 0) part_top[split] = make_float2(largest, total);  // bug 1 other, bug 2 other, bug 12 other
#endif
    __syncwarp();
#if BUG == 3
    if (lane == 0 && split != 2) raise(&flags[split]);
#else
    if (lane == 0) raise(&flags[split]);
#endif
#if BUG == 15
    float unwritten;  // an asm that only sometimes writes its result
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p mov.f32 %0, 0f3F800000; }" : "=f"(unwritten) : "r"(split));
    if (split == 0 && lane == 0) lse[0] = unwritten * scale;  // bug 15
#endif
    if (split != 0) return;

    for (int s = lane; s < splits; s += 32) wait(&flags[s]);
    __syncwarp();
    largest = -1e30f, total = 0.0f, sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int s = 0; s < splits; ++s) {
#if BUG == 12
        const float4 part = __ldg(&part_sum[s * 32 + lane]);  // bug 12
        const float2 top = __ldg(&part_top[s]);  // bug 12
#else
        const float4 part = part_sum[s * 32 + lane];  // bug 1, bug 2, bug 8
        const float2 top = part_top[s];  // bug 1, bug 2, bug 8
#endif
        join(largest, total, sum, top.x, top.y, part);
    }
#if BUG == 16
    if (lane < 31)  // the last four columns are never written
#endif
        reinterpret_cast<float4*>(out)[lane] = weighted(1.0f / total, sum, 0.0f, sum);
    if (lane == 0) lse[0] = (largest + log2f(total)) * 0.69314718f;
}
