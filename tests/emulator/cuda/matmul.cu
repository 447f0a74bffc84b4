// Matrix product through shared tiles, with bugs to switch on: -DBUG=n plants bug n, BUG 0 is right.
//
// c = a b, all [n, n] by rows; a block a 16 x 16 tile of c, n need not be a multiple of 16.
// A line marked `bug n` is where bug n must be reported; `bug n other` is the other access of a race.

#ifndef BUG
#define BUG 0
#endif
constexpr int TILE = 16;

#if BUG == 9
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function, size_t size);
#endif

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
#if BUG == 3
    extern __shared__ float tiles[];  // launched with 64 bytes too few
    float* left = tiles;
    float* right = tiles + TILE * TILE;
#else
    __shared__ float left[TILE * TILE];
    extern __shared__ float right[];
#endif
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < n; first += TILE) {
#if BUG == 1
        const bool inside = row < n;  // the last columns of a tile run into the next row, and past the last one
#else
        const bool inside = row < n && first + x < n;
#endif
        left[y * TILE + x] = inside ? a[row * n + first + x] : 0.0f;  // bug 1, bug 5 other, bug 6 other
#if BUG == 4
        if (first + y < n && column < n)
            right[y * TILE + x] = b[(first + y) * n + column];  // the others keep what was there
#elif BUG == 8
        if (first + y < n && column < n) {
            right[y * TILE + x] = b[(first + y) * n + column];
            __syncthreads();  // bug 8
        } else {
            right[y * TILE + x] = 0.0f;
            __syncthreads();  // bug 8 too
        }
#else
        right[y * TILE + x] = first + y < n && column < n ? b[(first + y) * n + column] : 0.0f;  // bug 3, bug 5 other, bug 6 other
#endif
#if BUG != 5 && BUG != 8
        __syncthreads();
#endif
#if BUG == 7
        for (int k = 0; k <= TILE; ++k)
#else
        for (int k = 0; k < TILE; ++k)
#endif
            sum += left[y * TILE + k] * right[k * TILE + x];  // bug 3, bug 4, bug 5, bug 6, bug 7
#if BUG != 6
        __syncthreads();
#endif
    }
#if BUG == 9
    if (sum != 0.0f) __assertfail("sum == 0", "matmul.cu", __LINE__, "matmul", 1);  // bug 9
#endif
#if BUG == 2
    if (row <= n && column < n) c[row * n + column] = sum;  // bug 2
#elif BUG == 10
    if (row < n && column <= n && row * n + column < n * n) c[row * n + column] = sum;  // bug 10, bug 10 other
#elif BUG == 11
    if (row < n - 1 && column < n) c[row * n + column] = sum;
#else
    if (row < n && column < n) c[row * n + column] = sum;
#endif
}
