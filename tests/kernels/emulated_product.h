// A Hopper card on one processor, for `kernels/linear/wide.cu`: what `emulated_rounded.h` lacks of its
// instructions, products of bfloat16, and programs of a cluster. They run one behind the other, twice:
// first each leaves what it shares, then it finds what the others have left.

#define HALVES !FP8
#include "emulated_rounded.h"

struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline u32 __shfl_sync(u32, u32 value, int lane) { return exchange({{value}, {}})[lane].words[0]; }

template <int REGISTERS>
void leave_registers() {}
template <int REGISTERS>
void take_registers() {}
inline void close_products() {}
template <int LEFT>
void wait_products() {
  arrive_at(teams[2 + threadIdx.x / 128], 128);
}

std::vector<std::vector<char>> shared_by(8, std::vector<char>(SHARED));
inline u32 cluster_place() { return blockIdx.x % SPLITS; }
inline void share_with_cluster() {
  meet_team<128 * GROUPS>();
  if (threadIdx.x == 128) std::copy(memory, memory + SHARED, shared_by[cluster_place()].begin());
  meet_team<128 * GROUPS>();
}
inline float4 load_four(u32 address) { return *(const float4*)(memory + address); }
inline float4 load_four_of(u32 program, u32 address) {
  return *(const float4*)(shared_by[program].data() + address);
}
