// `kernels/linear/wide.cu` as a library on the CPU: `emulated_product.h` runs it.

#include "wide.cu"

struct Arguments {
  const void* addresses[7];  // weight, x, residual, out, scales of x and of the weight, bias
  int numbers[4];            // rows, columns of the result, 16-bit columns, rows of the weight
} given;

void kernel() {
  const auto& a = given.addresses;
  const auto& [rows, num_out, depth, weight_rows] = given.numbers;
  const Map weights{(const char*)a[0], weight_rows, depth, FEATURES, 0};
  const Map x{(const char*)a[1], rows, depth, ROWS, 0};
  product(weights, x, (const uint2*)a[2], (uint2*)a[3], (const float*)a[4], (const float*)a[5],
          (const uint2*)a[6], rows, num_out, depth);
}

// Launch `grid` programs; "" or what went wrong.
extern "C" const char* run(const Arguments* arguments, int grid, int bytes, int back) {
  given = *arguments, shared_bytes = bytes, *fault = 0, gridDim.x = grid;
  for (int first = 0; first < grid && !*fault; first += SPLITS)
    for (int i = 0; i < (SPLITS > 1 ? 2 : 1) * SPLITS && !*fault; ++i)
      run_block(first + i % SPLITS, 128 * (GROUPS + 1), back);
  return fault;
}
