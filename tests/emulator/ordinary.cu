// Ordinary CUDA C++ of many kinds: what its PTX holds must decode (test_instructions.py). It is never run.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
extern "C" __global__ void math32(float* x, int n) {
    float a = x[threadIdx.x], b = x[threadIdx.x + 32];
    float r = sinf(a) + cosf(b) + tanf(a) + expf(a) + logf(b) + powf(a, b) + sqrtf(a) + rsqrtf(b) + cbrtf(a) + erff(a) + tgammaf(b);
    r += atan2f(a, b) + asinf(a) + sinhf(b) + tanhf(a) + fmodf(a, b) + remainderf(a, b) + ldexpf(a, n) + frexpf(b, &n) + roundf(a);
    r += floorf(a) + ceilf(b) + truncf(a) + rintf(b) + hypotf(a, b) + fdimf(a, b) + copysignf(a, b) + nextafterf(a, b) + log1pf(a);
    r += __sinf(a) + __cosf(b) + __expf(a) + __logf(b) + __fdividef(a, b) + __powf(a, b) + __saturatef(a) + fminf(a, b) + fmaxf(a, b);
    r += __fadd_rz(a, b) + __fmul_ru(a, b) + __fmaf_rd(a, b, a) + __fdiv_rz(a, b) + __fsqrt_rd(a) + __frcp_ru(b) + __frsqrt_rn(a);
    r += __int2float_rz(n) + __uint2float_ru(n) + __ll2float_rd((long long)n * n) + __float2int_rd(a) + __float2uint_rz(b) + __float2ll_rn(a);
    r += isnan(a) + isinf(b) + signbit(a) + ilogbf(a) + lroundf(b) + __float_as_int(a) + __int_as_float(n);
    x[threadIdx.x] = r;
}
extern "C" __global__ void math64(double* x, int n) {
    double a = x[threadIdx.x], b = x[threadIdx.x + 32];
    double r = sin(a) + exp(b) + log(a) + pow(a, b) + sqrt(a) + rsqrt(b) + a / b + fmod(a, b) + floor(a) + rint(b) + fma(a, b, a);
    r += __dadd_rz(a, b) + __dmul_ru(a, b) + __fma_rd(a, b, a) + __ddiv_rz(a, b) + __double2int_rn(a) + __double2ll_rz(b) + fmin(a, b);
    r += __double2float_rz(a) + __hiloint2double(n, n) + __double2hiint(a) + erf(a) + cbrt(b) + (double)(unsigned long long)n + atan(a);
    x[threadIdx.x] = r;
}
extern "C" __global__ void integers(int* x, long long* y, unsigned* u) {
    int i = threadIdx.x, a = x[i], b = x[i + 32];
    unsigned p = u[i], q = u[i + 32];
    int r = a / b + a % b + __mulhi(a, b) + __mul24(a, b) + __popc(a) + __clz(b) + __ffs(a) + __brev(b) + __byte_perm(a, b, p) + abs(a);
    r += __funnelshift_l(a, b, p) + __funnelshift_rc(a, b, q) + __dp4a(a, b, r) + __dp2a_lo(a, b, r) + __sad(a, b, p) + __hadd(a, b);
    r += __vadd2(p, q) + __vadd4(p, q) + __vmaxs2(p, q) + __vcmpeq4(p, q) + __vabsdiffu4(p, q) + __fns(p, 3, 2) + min(a, b) + max(p, q);
    r += (p >> (q & 31)) + (a >> b) + (p << q) + (a > b ? p : q) + (p / 7u) + (a % 10) + (p & 0xff) * (q >> 24) + __rhadd(a, b);
    long long s = y[i], t = y[i + 32];
    y[i] = s / t + s % t + __mul64hi(s, t) + __popcll(s) + __clzll(t) + __ffsll(s) + __brevll(t) + (s >> (a & 63)) + (unsigned long long)s / 10;
    short h = (short)a, g = (short)b; signed char c = (signed char)p; unsigned char d = (unsigned char)q;
    x[i] = r + h * g + c * d + h / (g | 1) + (c >> 1) + (short)(h << 3) + (h < g) + __viaddmax_s32(a, b, r) + __vimax3_s32(a, b, r);
}
extern "C" __global__ void halves(__half* h, __nv_bfloat16* w, float* f, __nv_fp8_e4m3* e) {
    int i = threadIdx.x;
    __half a = h[i], b = h[i + 32], c = __hfma(a, b, a) + a * b - a / b + hexp(a) + hlog(b) + hsqrt(a) + hsin(b) + __hmax(a, b) + __habs(a);
    __half2 a2 = __halves2half2(a, b), b2 = __floats2half2_rn(f[i], f[i + 1]), c2 = __hfma2(a2, b2, a2);
    c2 = __hadd2(c2, __hmul2(a2, b2)); c2 = __hmin2(c2, h2exp(a2)); c2 = __hfma2_relu(c2, a2, b2); c2 = __hadd2_sat(c2, a2);
    h[i] = __hlt(a, b) ? c : __low2half(c2); h[i + 1] = __hgt2(a2, b2).x + htanh(a) + __float2half_rz(f[i]) + __int2half_rn(i) + __ushort2half_rn(i);
    f[i] += __half2float(a) + __half2int_rz(b) + __heq2_mask(a2, b2) + (float)w[i];
    __nv_bfloat16 x = w[i], y = w[i + 32], z = __hfma(x, y, x) + x * y - x / y + hexp(x) + __hmax(x, y);
    __nv_bfloat162 x2 = __halves2bfloat162(x, y), y2 = __floats2bfloat162_rn(f[i], f[i + 2]);
    w[i] = __hgt(x, y) ? z : __low2bfloat16(__hfma2(x2, y2, x2)); w[i + 1] = __float2bfloat16_rz(f[i]);
    w[i + 2] = __high2bfloat16(__hmin2(__hmul2(x2, y2), __hadd2(x2, y2)));
    e[i] = __nv_fp8_e4m3(f[i]); f[i + 7] = (float)e[i + 3];
    atomicAdd(h, a); atomicAdd((__half2*)h, a2); atomicAdd(w, x); atomicAdd((__nv_bfloat162*)w, x2);
}
extern "C" __global__ void memory(int* x, float* f, double* d, unsigned long long* u, const float4* __restrict__ v, const int* c) {
    __shared__ float s[64]; extern __shared__ int dynamic[];
    int i = threadIdx.x; s[i] = f[i]; dynamic[i] = __ldg(c + i); __syncthreads();
    float4 q = v[i]; ((float4*)f)[i] = q; int local[16]; for (int k = 0; k < 16; k++) local[k] = x[k]; x[i] = local[x[i] & 15];
    atomicAdd(x, 1); atomicSub(x, i); atomicMin(x, i); atomicMax(x, i); atomicAnd(x, i); atomicOr(x, i); atomicXor(x, i); atomicExch(x, i);
    atomicInc((unsigned*)x, 7); atomicDec((unsigned*)x, 7); atomicCAS(x, 1, 2); atomicAdd(f, s[i ^ 1]); atomicAdd(d, 1.0); atomicAdd(u, 5ull);
    atomicAdd(s, 1.f); atomicAdd_block(x, 1); atomicAdd_system(x, 2); atomicCAS(u, 1ull, 2ull); atomicMax((long long*)u, 3ll); atomicCAS((unsigned short*)x, (unsigned short)1, (unsigned short)2);
    __threadfence(); __threadfence_block(); __threadfence_system(); __ldcg(f); __stcs(f + 2, 3.f); __ldcv(x); __stwt(x + 3, 1); f[9] = __ldcs(f + 8);
    volatile int* w = x; w[4] = w[5]; x[6] = __isShared(s) + __isGlobal(x) + __isLocal(local) + (int)__cvta_generic_to_shared(s);
    *(int*)(i & 1 ? (void*)x : (void*)dynamic) = 3;
}
extern "C" __global__ void warps(int* x, float* f) {
    int i = threadIdx.x, v = x[i]; unsigned m = __activemask();
    v += __shfl_sync(m, v, 3) + __shfl_xor_sync(~0u, v, 1, 8) + __shfl_up_sync(~0u, v, 2) + __shfl_down_sync(~0u, v, 4, 16);
    v += __any_sync(~0u, v) + __all_sync(~0u, v) + __uni_sync(~0u, v) + __ballot_sync(~0u, v > 3) + __match_any_sync(~0u, v);
    int all; v += __match_all_sync(~0u, v, &all) + all + __reduce_add_sync(~0u, v) + __reduce_max_sync(~0u, v) + __reduce_xor_sync(~0u, v);
    f[i] += __shfl_xor_sync(~0u, f[i], 16); double d = __shfl_down_sync(~0u, (double)f[i], 1); f[i] += (float)d; __syncwarp();
    v += __syncthreads_count(v) + __syncthreads_and(v) + __syncthreads_or(v); __nanosleep(20); long long t = clock64() + clock();
    v += (int)t + __popc(__activemask()); if (v == 12345) __trap(); x[i] = v; unsigned s; asm("mov.u32 %0, %%smid;" : "=r"(s)); x[i + 1] = s;
    asm volatile("bar.arrive 2, 64;"); asm volatile("barrier.sync.aligned 3;"); if (v == 7) printf("%d %f\n", v, f[i]); x[i] += blockIdx.y * gridDim.z + blockDim.x;
}
