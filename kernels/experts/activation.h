// What stands between gates and ups of an expert, in all kernels of CUDA C++.

// g sigmoid(slope (g + cubic g^3)) (u + shift), of `Activation`.
__device__ __forceinline__ float activated(float gate, float up, float slope, float shift,
                                           float limit, float cubic) {
  if (limit > 0.0f) gate = min(gate, limit), up = min(max(up, -limit), limit);
  const float share = max(slope * (gate + cubic * gate * gate * gate), -80.0f);
  return __fdividef(gate, 1.0f + __expf(-share)) * (up + shift);
}
