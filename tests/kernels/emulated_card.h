// A card on one processor, in the place of `kernels/cuda/ampere.h`: a kernel's own source becomes
// C++, and each of its threads a coroutine. Owns what CUDA and the instructions of that header mean.
//
// The first warp, or the last, runs ahead of the others as far as they let it; shared memory is NaN at first. Copies
// happen as early or as late as they may: a thread that reads too soon finds NaN, one that asks for
// a copy too soon spoils what others still read. Fragments must meet all banks, and copies lie within
// tensors. `run` says what went wrong.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
struct uint2 {
  u32 x, y;
};
struct uint4 {
  u32 x, y, z, w;
};

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

using std::max;
using std::min;

constexpr int SHARED = 256 * 1024, STACK = 128 * 1024;
alignas(128) char memory[SHARED];

struct Place {
  u32 x;
} threadIdx, blockIdx, gridDim;

struct Copy {
  u32 to;
  const void* from;
  bool is_inside;
};

// One that rests until `*awaited` is no longer `seen`, or, without it, until its next turn.
struct Thread {
  jmp_buf context;
  const u64* awaited = nullptr;
  u64 seen = 0;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  u64 times = 0;
  bool has_begun = false, is_done = false;
};

struct Barrier {
  int count = 0;
  u64 generation = 0;
  int any = 0, found = 0;
};

struct Lane {
  u32 words[16];
  float floats[4];
};

struct Range {
  const char* first;
  u64 bytes;
};

std::vector<Thread> threads;
std::vector<std::unique_ptr<char[]>> stacks;  // of threads, program after program
std::vector<Barrier> teams(32), warps(32);
Lane lanes[32][2][32];
std::vector<Range> tensors;
jmp_buf scheduler;
bool is_eager, has_moved;
u32 shared_bytes;
char fault[200];

void fail(const char* what, u64 number) {
  if (!*fault) snprintf(fault, sizeof fault, "%s: %llu, thread %u", what, number, threadIdx.x);
}

// Without `swapcontext`, which asks the system for the signals that are blocked.
void rest() {
  if (!_setjmp(threads[threadIdx.x].context)) _longjmp(scheduler, 1);
}
void rest_until_changed(const u64& number) {
  Thread& own = threads[threadIdx.x];
  own.awaited = &number, own.seen = number;
  rest();
  own.awaited = nullptr;
}

void arrive_at(Barrier& barrier, int count, int any = 0) {
  barrier.any |= any;
  if (++barrier.count == count) {
    barrier.found = barrier.any, barrier.any = barrier.count = 0;
    ++barrier.generation, has_moved = true;
    return;
  }
  rest_until_changed(barrier.generation);
}

// What all lanes of the warp give, at one instruction of theirs.
const Lane* exchange(const Lane& own) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Lane* const all = lanes[warp][threads[threadIdx.x].times++ % 2];
  all[lane] = own;
  arrive_at(warps[warp], 32);
  return all;
}

inline void __syncwarp() { arrive_at(warps[threadIdx.x / 32], 32); }
inline void __syncthreads() { arrive_at(teams[0], threads.size()); }
inline int __syncthreads_or(int any) {
  arrive_at(teams[0], threads.size(), any);
  return teams[0].found;
}
inline void __threadfence() {}
inline int __popc(u32 bits) { return __builtin_popcount(bits); }
template <class To, class From>
To bits_as(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class Number>
Number __shfl_sync(u32, Number value, int lane) {
  const Lane* const all = exchange({{bits_as<u32>(value)}, {}});
  return bits_as<Number>(all[lane].words[0]);
}
inline u32 __match_any_sync(u32, int value) {
  const Lane* const all = exchange({{(u32)value}, {}});
  u32 alike = 0;
  for (int lane = 0; lane < 32; ++lane) alike |= (u32)(all[lane].words[0] == (u32)value) << lane;
  return alike;
}
inline int atomicAdd(int* at, int number) { return (*at += number) - number; }
template <class Number>
Number __ldcg(const Number* at) {
  return *at;
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(u32 v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline u32 __byte_perm(u32 a, u32 b, u32 picks) {
  const u64 both = (u64)b << 32 | a;
  u32 v = 0;
  for (int i = 0; i < 4; ++i) v |= (u32)(both >> (8 * (picks >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return v;
}

// float16 and bfloat16, to the nearest, ties to even.
inline float wide(u16 bits, bool is_half) {
  if (!is_half) return __uint_as_float((u32)bits << 16);
  const int exponent = bits >> 10 & 31, rest = bits & 1023;
  const float size = exponent == 31  ? (rest ? NAN : INFINITY)
                     : exponent == 0 ? std::ldexp((float)rest, -24)
                                     : std::ldexp((float)(1024 + rest), exponent - 25);
  return bits >> 15 ? -size : size;
}
inline u16 narrow(double v) {
  if (std::isnan(v)) return 0x7FFF;
  const u16 sign = std::signbit(v) ? 0x8000 : 0;
  const int digits = HALF ? 11 : 8, least = HALF ? -14 : -126, bias = HALF ? 15 : 127;
  if (v == 0) return sign;
  const int exponent = max(std::isinf(v) ? bias + 1 : std::ilogb(v), least);
  const double number = std::nearbyint(std::ldexp(std::fabs(v), digits - 1 - exponent));
  if (exponent > bias || std::ldexp(number, exponent + 1 - digits) >= std::ldexp(1.0, bias + 1))
    return sign | (HALF ? 0x7C00 : 0x7F80);
  // A number that rounds up to the next exponent carries over into it.
  return sign | (u16)(number + (exponent - least) * std::ldexp(1.0, digits - 1));
}
inline float number_of(u32 pair, int which) { return wide(pair >> (16 * which), HALF); }

inline u32 shared_address(const void* place) { return (const char*)place - memory; }
inline u64 policy_of(bool) { return 0; }

inline void carry_out(const Copy& copy) {
  if (copy.is_inside) memcpy(memory + copy.to, copy.from, 16);
  else memset(memory + copy.to, 0, 16);
}
// A copy of no bytes reads nothing, whatever its address (PTX, `cp.async` with a src-size of 0). Only
// kernels of experts use that; all others keep the address inside, and are held to it.
#ifndef EMPTY_COPIES_ANYWHERE
#define EMPTY_COPIES_ANYWHERE 0
#endif

inline void copy16(u32 to, const void* from, bool is_inside, u64 = 0) {
  const auto holds = [&](const Range& range) {
    return from >= range.first && (const char*)from + 16 <= range.first + range.bytes;
  };
  if (to % 16 || (u64)from % 16) return fail("a copy to or from an odd address", to);
  if (to + 16 > shared_bytes) return fail("a copy behind shared memory", to);
  if ((is_inside || !EMPTY_COPIES_ANYWHERE) && std::none_of(tensors.begin(), tensors.end(), holds))
    return fail("a copy from nowhere", to);
  const Copy copy{to, from, is_inside};
  if (is_eager) carry_out(copy);
  else threads[threadIdx.x].open.push_back(copy);
}
inline void copy16_of_128(u32 to, const void* from, bool is_inside) { copy16(to, from, is_inside); }
inline void copy16_of_256(u32 to, const void* from, bool is_inside) { copy16(to, from, is_inside); }
inline void close_group() {
  Thread& own = threads[threadIdx.x];
  own.groups.push_back(own.open), own.open.clear();
}
template <int LEFT>
void wait_groups() {
  auto& groups = threads[threadIdx.x].groups;
  for (; (int)groups.size() > LEFT; groups.pop_front())
    for (const Copy& copy : groups.front()) carry_out(copy);
}
template <int THREADS>
void meet(int team) {
  if (THREADS == 32) __syncwarp();
  else arrive_at(teams[team + 1], THREADS);
}
inline void let_next_begin() {}
inline void wait_for_last() {}

inline void load_tiles(u32 (&v)[4], u32 address) {
  if (address % 16 || address + 16 > shared_bytes) fail("a fragment at", address), address = 0;
  Lane own{};
  memcpy(own.words, memory + address, 16);
  own.words[4] = address;
  const Lane* const all = exchange(own);
  const u32 lane = threadIdx.x % 32;
  // The eight rows of a fragment come at once, if they lie in different banks or are the same.
  for (u32 other = lane / 8 * 8; other < lane; ++other)
    if (all[other].words[4] != address && (all[other].words[4] ^ address) / 16 % 8 == 0)
      fail("a bank conflict", address);
  for (int tile = 0; tile < 4; ++tile) v[tile] = all[8 * tile + lane / 4].words[lane % 4];
}

inline void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&from)[4]) {
  const Lane* const all = exchange({{a[0], a[1], a[2], a[3], b0, b1}, {}});
  const u32 lane = threadIdx.x % 32;
  for (int r = 0; r < 4; ++r) {
    const u32 row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
    double sum = 0;
    for (u32 k = 0; k < 16; ++k) {
      const u32 pair = k % 8 / 2, which = k % 2;
      const u32 left = all[4 * (row % 8) + pair].words[row / 8 + 2 * (k / 8)];
      const u32 right = all[4 * column + pair].words[4 + k / 8];
      sum += (double)number_of(left, which) * number_of(right, which);
    }
    sums[r] = (float)(from[r] + sum);
  }
}

inline u32 multiply_add(u32 a, u32 b, u32 c) {
  u32 v = 0;
  for (int i = 0; i < 2; ++i) {
    const double product = (double)number_of(a, i) * number_of(b, i);
    v |= (u32)narrow(product + number_of(c, i)) << (16 * i);
  }
  return v;
}
inline u32 masked(u32 a, u32 b, u32 c) { return (a & b) | c; }

void kernel();  // with what `run` was called with

void one_thread() {
  const u32 own = threadIdx.x;
  kernel();
  for (const auto& group : threads[own].groups)
    if (!group.empty()) fail("copies on their way at the end", group.size());
  threads[own].is_done = has_moved = true;
  rest();
}

// This thread up to where it waits.
void go_on() {
  Thread& own = threads[threadIdx.x];
  if (_setjmp(scheduler)) return;
  if (own.has_begun) _longjmp(own.context, 1);
  own.has_begun = true;
  ucontext_t begun;
  getcontext(&begun);
  begun.uc_stack.ss_sp = stacks[threadIdx.x].get(), begun.uc_stack.ss_size = STACK;
  makecontext(&begun, one_thread, 0);
  setcontext(&begun);
}

// Each thread of a warp up to where it waits; how many have not ended.
int run_warp(int warp, bool is_back) {
  int left = 0;
  for (int i = 0; i < 32 && !*fault; ++i) {
    threadIdx.x = 32 * warp + (is_back ? 31 - i : i);
    const Thread& own = threads[threadIdx.x];
    if (!own.is_done && !(own.awaited && *own.awaited == own.seen)) go_on();
    left += !own.is_done;
  }
  return left;
}

// Run a program of so many threads; `is_back`: the last thread goes first.
void run_block(u32 block, int num_threads, bool is_back) {
  blockIdx.x = block;
  memset(memory, 0xFF, sizeof memory);
  threads = std::vector<Thread>(num_threads);
  std::fill(teams.begin(), teams.end(), Barrier{});
  std::fill(warps.begin(), warps.end(), Barrier{});
  while ((int)stacks.size() < num_threads) stacks.emplace_back(new char[STACK]);
  const int num_warps = num_threads / 32;
  for (int left = num_threads; left > 0 && !*fault;) {
    bool any_moved = false;
    left = 0;
    for (int warp = 0; warp < num_warps; ++warp) {
      int own_left = 0;
      do {
        has_moved = false;
        own_left = run_warp(is_back ? num_warps - 1 - warp : warp, is_back);
        any_moved |= has_moved;
      } while (has_moved && own_left && !*fault);
      left += own_left;
    }
    if (left && !any_moved) fail("threads wait for each other", left);
  }
}
