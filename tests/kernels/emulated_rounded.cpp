// `kernels/experts/rounded.cu` as a library on the CPU: `emulated_rounded.h` runs it.

#include "rounded.cu"

struct Arguments {
  const u16* x;
  const int* experts;
  const char* values;
  const float* scales;
  const u16* bias;
  u16* out;
  int numbers[5];
} given;

void kernel() {
  const auto& n = given.numbers;
  const Map map{given.values, (int)(tensors[0].bytes / DEPTH), DEPTH / 2, 0, 0};
  rounded_experts(map, given.x, given.experts, given.scales, given.bias, given.out, n[0], n[1], n[2],
                  n[3], n[4]);
}

// Launch `grid` programs; "" or what went wrong. `ranges`: the stack. Neighbours have their threads in
// opposite orders.
extern "C" const char* run(const Arguments* arguments, const Range* ranges, int num_ranges,
                           int grid, int bytes, int, int back) {
  given = *arguments, shared_bytes = bytes, *fault = 0, gridDim.x = grid;
  tensors.assign(ranges, ranges + num_ranges);
  steps = UP ? Steps{1, OUT, 8} : Steps{2, 1, 16};
  for (int i = 0; i < grid && !*fault; ++i) run_block(back ? grid - 1 - i : i, THREADS, back ^ i % 2);
  return fault;
}
