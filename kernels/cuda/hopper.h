// What kernels for Hopper tell the card: barriers in shared memory, the copy engine, and what the
// tensor cores of a warp group read. Must not know any kernel.

typedef unsigned int u32;
typedef unsigned long long u64;

// How the copy engine finds tiles of a tensor; the driver writes it.
struct alignas(64) Map {
  char bytes[128];
};

__device__ __forceinline__ u32 shared_address(const void* place) {
  return (u32)__cvta_generic_to_shared(place);
}

__device__ __forceinline__ void init_barrier(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrive, and say how many bytes the copy engine brings besides.
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra again;\nready:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The place of this program in its cluster.
__device__ __forceinline__ u32 cluster_place() {
  u32 place;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(place));
  return place;
}

// All programs of the cluster meet; what they stored need not be visible to the others.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// All programs of the cluster; what they have stored in shared memory is there for the others.
__device__ __forceinline__ void share_with_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ float4 load_four(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}

// Read from the same place of another program of the cluster.
__device__ __forceinline__ float4 load_four_of(u32 program, u32 address) {
  float4 v;
  asm volatile(
      "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(program));
  return v;
}

// The copy engine reads a map at its first use; asked for ahead, that costs no time.
__device__ __forceinline__ void prefetch_map(const Map* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void fetch(u32 to, const Map* map, u32 barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// Fetch a tile that no other program reads: it leaves the cache first.
__device__ __forceinline__ void fetch_once(u32 to, const Map* map, u32 barrier, int column,
                                           int row) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], policy;\n}" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

__device__ __forceinline__ void fetch(u32 to, const Map* map, u32 barrier, int column, int head,
                                      int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row)
      : "memory");
}

__device__ __forceinline__ void fetch_once(u32 to, const Map* map, u32 barrier, int column,
                                           int head, int row) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], policy;\n}" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row)
      : "memory");
}

__device__ __forceinline__ void fetch_once(u32 to, const Map* map, u32 barrier, int column, int row,
                                           int half, int band) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], policy;\n}" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(half), "r"(band)
      : "memory");
}

// Barriers that this thread has made are there for the copy engine.
__device__ __forceinline__ void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread has stored in shared memory is there for products of a warp group.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void close_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait for this warp group's products but the last `LEFT` groups.
template <int LEFT>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// A warp group that fetches leaves registers to those that multiply: so many a thread, all at once.
template <int REGISTERS>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// `THREADS` threads meet; barrier 0 is the block's.
template <int THREADS>
__device__ __forceinline__ void meet_team() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// The kernel behind may begin.
__device__ __forceinline__ void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The kernel ahead has ended.
__device__ __forceinline__ void wait_for_last() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A tile whose rows of 128 bytes lie in swizzled groups of eight, one group every 1024 bytes.
// `next` bytes behind it lie the next 64 columns, where a product takes more of them than that.
__device__ __forceinline__ u64 matrix(u32 address, u32 next = 16) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(next >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ u32 packed(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// Two numbers in e4m3, `first` in the low bits; larger ones than 448 become that.
__device__ __forceinline__ u32 in_8_bits(float first, float second) {
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  return both;
}
