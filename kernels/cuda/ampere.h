// What kernels for compute capability 8.0 and later tell the card: copies into shared memory that
// run meanwhile, fragments, the tensor cores of a warp, and pairs of 16-bit numbers. Must not know
// any kernel. Macros: ARCH (86 for 8.6), HALF (numbers are float16, else bfloat16).
//
// All instructions are here: tests put a header in its place that does the same on a CPU
// (`tests/kernels/emulated_card.h`).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#if HALF
#define KIND "f16"
#else
#define KIND "bf16"
#endif

__device__ __forceinline__ u32 shared_address(const void* place) {
  return (u32)__cvta_generic_to_shared(place);
}

// How long the L2 cache keeps what is copied: as usual, or it leaves first.
__device__ __forceinline__ u64 policy_of(bool leaves_first) {
  u64 usual, first;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  return leaves_first ? first : usual;
}

// Start to copy 16 bytes; zeros unless `is_inside`.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_inside ? 16 : 0)
               : "memory");
}

// Start to copy 16 bytes; the L2 cache fetches all 128 bytes around them.
__device__ __forceinline__ void copy16_of_128(u32 to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_inside ? 16 : 0)
               : "memory");
}

// Start to copy 16 bytes; the L2 cache fetches all 256 bytes around them. Unless `is_inside` nothing
// is read, so `from` may be anywhere.
__device__ __forceinline__ void copy16_of_256(u32 to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_inside ? 16 : 0)
               : "memory");
}

// The same as the first with a policy, which must depend on what is known only when the kernel runs. Of a policy
// that is known before, NVRTC 13.0 leaves the registers unwritten where it splits the place `to` into
// a part of the lane and one of the warp: on an H200 an illegal instruction.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool is_inside, u64 policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(from), "r"(is_inside ? 16 : 0), "l"(policy)
      : "memory");
}

// The copies since the last call become one group.
__device__ __forceinline__ void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait for this thread's groups but the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// The threads of one of several teams; a team of one warp has no barrier. Barrier 0 is the block's.
template <int THREADS>
__device__ __forceinline__ void meet(int team) {
  if (THREADS == 32) __syncwarp();
  else asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(THREADS) : "memory");
}

// The kernel behind may begin.
__device__ __forceinline__ void let_next_begin() {
#if ARCH >= 90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The kernel ahead has ended.
__device__ __forceinline__ void wait_for_last() {
#if ARCH >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void load_tiles(u32 (&v)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}

// sums = a b + from, of 16 x 16 and 16 x 8.
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                         const float (&from)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(from[0]), "f"(from[1]),
        "f"(from[2]), "f"(from[3]));
}

// a b + c of two pairs, rounded once. Sums and products of bfloat16 alone came with Hopper.
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
  u32 v;
  asm("fma.rn." KIND "x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

// a & b | c.
__device__ __forceinline__ u32 masked(u32 a, u32 b, u32 c) {
  u32 v;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

__device__ __forceinline__ float wide(u16 bits, bool is_half) {
  float v;
  if (is_half) asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  else v = __uint_as_float((u32)bits << 16);
  return v;
}

__device__ __forceinline__ u16 narrow(float v) {
  u16 bits;
  asm("cvt.rn." KIND ".f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}
