// A whole program as people write them: kernels, host code, launches. "__global__ void not_me(" is a string below.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <vector>

#define CHECK(call)                                                        \
    do {                                                                   \
        cudaError_t status = (call);                                       \
        if (status != cudaSuccess) { std::cerr << "failed\n"; exit(1); }   \
    } while (0)
#define DEVICE __device__ __forceinline__

const int BLOCK = 128;
static float* buffer;
std::vector<float> host_data;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Pair {
    float a, b;
    DEVICE float sum() const { return a + b; }
    void print() const { std::cout << a << '{' << b << std::endl; }
};

class Timer {
public:
    Timer() { CHECK(cudaEventCreate(&start_)); }
    float stop();

private:
    cudaEvent_t start_;
    std::vector<float> laps_{};
};

DEVICE float twice(float x) { return 2 * x; }

template <typename T, int N>
__global__ void scale(T* data, uint32_t count) {
    __shared__ T tile[ceil_div(N, 32) * 32];
    uint32_t i = blockIdx.x * N + threadIdx.x;
    tile[threadIdx.x] = i < count ? data[i] : T(0);
    __syncthreads();
    if (i < count) data[i] = twice(tile[N - 1 - threadIdx.x]);
}

__global__ void add_pairs(const Pair* pairs, float* out) { out[threadIdx.x] = fminf(pairs[threadIdx.x].sum(), INFINITY); }

namespace app {
template <typename T>
void run(std::vector<T>& values) {
    T* device = nullptr;
    CHECK(cudaMalloc(&device, values.size() * sizeof(T)));
    scale<float, 128><<<ceil_div(values.size(), BLOCK), BLOCK>>>(device, values.size());
    const char* text = "__global__ void not_me(float* x) { <<< }";
    printf("%s %d\n", text, 1'000);
}
}  // namespace app

int main(int argc, char** argv) {
    std::vector<float> values(1024, 1.f);
    std::sort(values.begin(), values.end(), [](float a, float b) { return a < b; });
    app::run(values);
    return 0;
}
