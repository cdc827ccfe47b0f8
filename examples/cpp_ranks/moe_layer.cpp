#include "moe_layer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace {

std::vector<float> random_values(std::size_t count, unsigned seed, float scale) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(count);
  for (float& value : values)
    value = uniform(generator);
  return values;
}

float dot(const float* a, const float* b, int count) {
  return std::inner_product(a, a + count, b, 0.0f);
}

std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

}  // namespace

Expert::Expert(const Sizes& sizes, int index) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(sizes.hidden));
  const auto seed = static_cast<unsigned>(1000 + 3 * index);
  gate = random_values(product(sizes.inner, sizes.hidden), seed, scale);
  up = random_values(product(sizes.inner, sizes.hidden), seed + 1, scale);
  down = random_values(product(sizes.hidden, sizes.inner), seed + 2, scale);
}

void Expert::add(const Sizes& sizes, const float* x, float weight, float* out) const {
  std::vector<float> inner(static_cast<std::size_t>(sizes.inner));
  for (int i = 0; i < sizes.inner; ++i) {
    const float g = dot(&gate[product(i, sizes.hidden)], x, sizes.hidden);
    const float u = dot(&up[product(i, sizes.hidden)], x, sizes.hidden);
    inner[static_cast<std::size_t>(i)] = g / (1.0f + std::exp(-g)) * u;
  }
  for (int h = 0; h < sizes.hidden; ++h) {
    out[h] += weight * dot(&down[product(h, sizes.inner)], inner.data(), sizes.inner);
  }
}

std::vector<float> make_tokens(const Sizes& sizes, int rank) {
  return random_values(product(sizes.tokens, sizes.hidden), static_cast<unsigned>(rank + 1), 1.0f);
}

Routing route(const Sizes& sizes, const std::vector<float>& tokens) {
  const auto router = random_values(product(sizes.experts, sizes.hidden), 99, 1.0f);
  Routing routing;
  for (int token = 0; token < sizes.tokens; ++token) {
    const float* x = &tokens[product(token, sizes.hidden)];
    std::vector<float> scores;
    for (int expert = 0; expert < sizes.experts; ++expert) {
      scores.push_back(dot(&router[product(expert, sizes.hidden)], x, sizes.hidden));
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(sizes.experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    float total = 0;
    for (int k = 0; k < sizes.top_k; ++k) {
      total += std::exp(scores[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])]);
    }
    for (int k = 0; k < sizes.top_k; ++k) {
      const std::int32_t expert = order[static_cast<std::size_t>(k)];
      routing.ids.push_back(expert);
      routing.weights.push_back(std::exp(scores[static_cast<std::size_t>(expert)]) / total);
    }
  }
  return routing;
}

std::vector<float> dense_layer(const Sizes& sizes, const std::vector<float>& tokens,
                               const Routing& routing) {
  std::vector<float> out(tokens.size());
  for (int expert = 0; expert < sizes.experts; ++expert) {
    const Expert layer(sizes, expert);
    for (int token = 0; token < sizes.tokens; ++token) {
      for (int k = 0; k < sizes.top_k; ++k) {
        const auto pick = static_cast<std::size_t>(token * sizes.top_k + k);
        if (routing.ids[pick] != expert) continue;
        layer.add(sizes, &tokens[product(token, sizes.hidden)], routing.weights[pick],
                  &out[product(token, sizes.hidden)]);
      }
    }
  }
  return out;
}
