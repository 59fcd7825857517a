// `kernels/experts/listed.cu` as a library on the CPU: `emulated_card.h` runs it.

#include "listed.cu"

struct Arguments {
  const u16* x;
  const int* experts;
  const char* values;
  const void* scales;
  const u16* bias;
  void* out;
  int numbers[5];
} given;

void kernel() {
  const auto& n = given.numbers;
  listed_experts(given.x, given.experts, given.values, given.scales, given.bias, given.out,
                n[0], n[1], n[2], n[3], n[4]);
}

// Launch `grid` programs; "" or what went wrong. `ranges`: tensors that copies may read. Neighbours
// have their threads in opposite orders.
extern "C" const char* run(const Arguments* arguments, const Range* ranges, int num_ranges,
                           int grid, int bytes, int eager, int back) {
  given = *arguments, shared_bytes = bytes, is_eager = eager, *fault = 0, gridDim.x = grid;
  tensors.assign(ranges, ranges + num_ranges);
  for (int i = 0; i < grid && !*fault; ++i) run_block(back ? grid - 1 - i : i, THREADS, back ^ i % 2);
  return fault;
}
