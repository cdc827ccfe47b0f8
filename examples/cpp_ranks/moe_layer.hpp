// A mixture-of-experts layer in plain loops: softmax router, SwiGLU experts, float32.
#pragma once

#include <cstdint>
#include <vector>

struct Sizes {
  int ranks = 4;
  int tokens = 16;  // of a rank
  int hidden = 64;
  int experts = 8;
  int top_k = 2;
  int inner = 32;  // of an expert
};

// One expert: down(silu(gate x) * (up x)).
struct Expert {
  std::vector<float> gate, up, down;

  // Every rank can make every expert; an expert-parallel rank makes only its own.
  Expert(const Sizes& sizes, int index);
  void add(const Sizes& sizes, const float* x, float weight, float* out) const;
};

struct Routing {
  std::vector<std::int32_t> ids;  // [tokens, top_k]
  std::vector<float> weights;     // [tokens, top_k], each row sums to 1
};

// Rank `rank`'s tokens [tokens, hidden] and where the router sends them.
std::vector<float> make_tokens(const Sizes& sizes, int rank);
Routing route(const Sizes& sizes, const std::vector<float>& tokens);

// The layer on one machine: what the distributed one must match.
std::vector<float> dense_layer(const Sizes& sizes, const std::vector<float>& tokens,
                               const Routing& routing);
