// Asks NVIDIA's occupancy calculator (cuda_occupancy.h, header-only, needs no GPU and no driver) many questions at once.
//   g++ -O2 -std=c++17 -I<the wheel's include folder> occupancy_oracle.cpp -o occupancy_oracle
// stdin and stdout are rows of int64, so that numpy writes and reads them whole.
// A question brings the device along: the harness has no table, and so no fact that could differ from perflab's CSV.
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include "cuda_occupancy.h"

struct Question {
  std::int64_t major, minor, threads_per_block, threads_per_sm, registers_per_sm, registers_per_block;
  std::int64_t shared_per_sm, shared_per_block, shared_per_block_optin, shared_reserved;
  std::int64_t block, registers, static_shared, dynamic_shared, max_dynamic_shared, optin, barriers, carveout, virtual_resources;
};

struct Answer {
  std::int64_t status;  // 0, or the header's error code
  std::int64_t blocks, limiters, warps, registers, shared_memory, block_slots, barriers;  // INT_MAX = no limit
  std::int64_t helper;  // what cudaOccAvailableDynamicSMemPerBlock offers for two blocks a multiprocessor, -1 = an error
};

static Answer ask(const Question &q) {
  cudaOccDeviceProp device;
  device.computeMajor = int(q.major);
  device.computeMinor = int(q.minor);
  device.warpSize = 32;
  device.numSms = 1;
  device.maxThreadsPerBlock = int(q.threads_per_block);
  device.maxThreadsPerMultiprocessor = int(q.threads_per_sm);
  device.regsPerMultiprocessor = int(q.registers_per_sm);
  device.regsPerBlock = int(q.registers_per_block);
  device.sharedMemPerMultiprocessor = std::size_t(q.shared_per_sm);
  device.sharedMemPerBlock = std::size_t(q.shared_per_block);
  device.sharedMemPerBlockOptin = std::size_t(q.shared_per_block_optin);
  device.reservedSharedMemPerBlock = std::size_t(q.shared_reserved);

  cudaOccFuncAttributes kernel;
  kernel.maxThreadsPerBlock = int(q.threads_per_block);
  kernel.numRegs = int(q.registers);
  kernel.sharedSizeBytes = std::size_t(q.static_shared);
  kernel.maxDynamicSharedSizeBytes = std::size_t(q.max_dynamic_shared);
  kernel.shmemLimitConfig = q.optin ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
  kernel.numBlockBarriers = int(q.barriers);
  kernel.virtualResourceCount = int(q.virtual_resources);

  cudaOccDeviceState state;
  state.carveoutConfig = int(q.carveout);

  Answer answer{};
  cudaOccResult found{};
  const std::size_t dynamic_shared = std::size_t(q.dynamic_shared);
  answer.status = cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &kernel, &state, int(q.block), dynamic_shared);
  if (answer.status) return answer;
  answer.blocks = found.activeBlocksPerMultiprocessor;
  answer.limiters = found.limitingFactors;
  answer.warps = found.blockLimitWarps;
  answer.registers = found.blockLimitRegs;
  answer.shared_memory = found.blockLimitSharedMem;
  answer.block_slots = found.blockLimitBlocks;
  answer.barriers = found.blockLimitBarriers;
  std::size_t offered = 0;
  const bool failed = cudaOccAvailableDynamicSMemPerBlock(&offered, &device, &kernel, &state, 2, int(q.block));
  answer.helper = failed ? -1 : std::int64_t(offered);
  return answer;
}

int main() {
  Question question;
  while (std::fread(&question, sizeof question, 1, stdin) == 1) {
    const Answer answer = ask(question);
    std::fwrite(&answer, sizeof answer, 1, stdout);
  }
  return 0;
}
