// MLA verify attention, version 9: gather pages.
//
// Computes copies of the cache rows of each request, taken out of the pages of a pool, one after the other in the order of their
// keys: what 10_register_banks.cu then reads as a contiguous cache. One copy serves all verify steps until the rows change.
//
// Changed: nothing in the attention; the rows are put together first, instead of being found through the page table each time.
// Should:  pay after some verify steps if finding rows through the table costs time, and never if it costs none.
// Limits:  DRAM: every row is read and written once. A block copies 16 rows, a thread 8 quads whose loads wait for none of each
//          other; each of its loads of the table is one of a few cached words. Rows of whole 16 bytes on 16-byte boundaries.

template <int WIDTH, int PAGE>
__global__ void __launch_bounds__(2 * WIDTH / 4)
gather_pages(const float* __restrict__ kv,        // [pages of the pool, PAGE, WIDTH]
             const int* __restrict__ page_table,  // [batch, ceil(keys / PAGE)], ids of pages in the pool
             float* __restrict__ rows,            // [batch, keys, WIDTH]
             int keys) {
    constexpr int QUADS = WIDTH / 4, KEYS = 16;
    const int quad = threadIdx.x % QUADS, request = blockIdx.y;
    const int* ids = page_table + (long long)request * ((keys + PAGE - 1) / PAGE);
    const float4* pool = reinterpret_cast<const float4*>(kv) + quad;
    float4* copied = reinterpret_cast<float4*>(rows) + (long long)request * keys * QUADS + quad;

    const int first = blockIdx.x * KEYS + threadIdx.x / QUADS;
    float4 carried[KEYS / 2];
#pragma unroll
    for (int k = 0; k < KEYS / 2; ++k) {
        const int key = first + 2 * k;
        if (key < keys) carried[k] = pool[((long long)ids[key / PAGE] * PAGE + key % PAGE) * QUADS];
    }
#pragma unroll
    for (int k = 0; k < KEYS / 2; ++k) {
        const int key = first + 2 * k;
        if (key < keys) copied[(long long)key * QUADS] = carried[k];
    }
}
