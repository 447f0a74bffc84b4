// Kernels that are right, each by another way of making threads meet: none may be reported.

constexpr unsigned ALL = 0xffffffffu;

// Two warps hand a tile to and fro over two named barriers: the producer does not wait where it need not.
extern "C" __global__ void named_barriers(const int* in, int* out, int rounds) {
    __shared__ int tile[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int k = 0; k < rounds; ++k) {
            if (k) asm volatile("bar.sync 2, 64;" ::: "memory");  // the tile has been read
            tile[lane] = in[k * 32 + lane];
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        }
    } else {
        for (int k = 0; k < rounds; ++k) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[k * 32 + lane] = tile[31 - lane];
            if (k + 1 < rounds) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}

// A lock around plain reads and writes, taken by every lane of every warp.
extern "C" __global__ void lock(int* taken, int* total) {
    bool done = false;
    while (!done) {
        if (atomicCAS(taken, 0, 1) == 0) {
            __threadfence();
            *total += 1;
            __threadfence();
            atomicExch(taken, 0);
            done = true;
        }
    }
}

// Blocks meet several times and read what their neighbour left.
extern "C" __global__ void grid_barrier(int* values, unsigned* arrived, int rounds) {
    const int blocks = gridDim.x;
    for (int k = 1; k <= rounds; ++k) {
        values[(k * blocks + blockIdx.x) * blockDim.x + threadIdx.x] =
            1 + (k == 1 ? 0 : values[((k - 1) * blocks + (blockIdx.x + 1) % blocks) * blockDim.x + threadIdx.x]);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1u);
            while (*const_cast<volatile unsigned*>(arrived) < k * blocks) {}
            __threadfence();
        }
        __syncthreads();
    }
}

// Bins in shared memory, then in global memory; the blocks' additions meet in atomics only.
extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&bins[i], local[i]);
}

// A running sum in two buffers, one barrier a step.
extern "C" __global__ void scan(const int* in, int* out) {
    __shared__ int buffer[2][256];
    const int t = threadIdx.x;
    int now = 0;
    buffer[0][t] = in[t];
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2, now ^= 1) {
        buffer[now ^ 1][t] = buffer[now][t] + (t >= step ? buffer[now][t - step] : 0);
        __syncthreads();
    }
    out[t] = buffer[now][t];
}

// Halves of a warp that go their own ways, each with its own mask.
extern "C" __global__ void half_warps(const int* in, int* out) {
    __shared__ int box[32];
    const int lane = threadIdx.x;
    int value = in[lane];
    if (lane < 16) {
        box[lane] = value;
        __syncwarp(0x0000ffffu);
        value = box[lane ^ 15] + __shfl_xor_sync(0x0000ffffu, value, 3);
    } else {
        value = __reduce_add_sync(0xffff0000u, value);
        box[lane] = value;
        __syncwarp(0xffff0000u);
        value += box[16 + (lane & 7)];
    }
    __syncwarp();
    out[lane] = value + box[31 - lane];
}

// Barriers that count, and threads that leave before them.
extern "C" __global__ void counting_barriers(const int* in, int* out, int n) {
    const int t = threadIdx.x;
    if (t >= n) return;
    const int positive = __syncthreads_count(in[t] > 0);
    const int any = __syncthreads_or(in[t] == 7), all = __syncthreads_and(in[t] > -100);
    out[t] = positive * 4 + (any ? 2 : 0) + (all ? 1 : 0);
}

// A flag between two warps of a block, in shared memory, with fences of the block.
extern "C" __global__ void flag_in_block(const int* in, int* out) {
    __shared__ int data[32];
    __shared__ int ready;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x >= 32) {
        data[lane] = in[lane];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) {
            __threadfence_block();
            *const_cast<volatile int*>(&ready) = 1;
        }
    } else {
        while (!*const_cast<volatile int*>(&ready)) {}
        __threadfence_block();
        out[lane] = data[31 - lane];
    }
}

// Bytes side by side in one word belong to different threads; a word is read once all of its bytes are there.
extern "C" __global__ void bytes(const unsigned char* in, unsigned char* out, unsigned* words) {
    __shared__ __align__(4) unsigned char box[128];
    const int t = threadIdx.x;
    box[t] = in[t];
    out[t] = in[t] + 1;
    __syncthreads();
    if (t < 32) words[t] = reinterpret_cast<const unsigned*>(box)[t];
}

// The classic tree, a barrier a level, fewer threads each time.
extern "C" __global__ void tree(int* data, int* out) {
    extern __shared__ int level[];
    const int t = threadIdx.x;
    level[t] = data[blockIdx.x * blockDim.x + t];
    data[blockIdx.x * blockDim.x + t] = -1;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (t < step) level[t] += level[t + step];
        __syncthreads();
    }
    if (t == 0) atomicAdd(out, level[0]);
}
