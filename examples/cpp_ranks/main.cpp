// An expert-parallel MoE layer on N ranks, in C++ alone: one process a rank, joined through a Unix
// socket, checked against the dense layer.
//
//   cpp_ranks [ranks [tokens [hidden [experts [top_k]]]]]

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <moe_ep/moe_ep.hpp>

#include "moe_layer.hpp"

namespace {

constexpr float kTolerance = 1e-5f;  // float32 sums in another order

// What this rank's experts make of the rows they received: weighted, summed over local picks.
void run_experts(const Sizes& sizes, int rank, const std::vector<Expert>& local,
                 const moe_ep::MoEEpDispatchResult& received, float* out) {
  const int per_rank = sizes.experts / sizes.ranks;
  const auto* x = static_cast<const float*>(received.hidden_states.data);
  const auto* ids = static_cast<const std::int32_t*>(received.topk_ids.data);
  const auto* weights = static_cast<const float*>(received.topk_weights->data);
  for (std::int64_t row = 0; row < received.hidden_states.size(0); ++row) {
    std::fill_n(out + row * sizes.hidden, sizes.hidden, 0.0f);
    for (int k = 0; k < sizes.top_k; ++k) {
      const int expert = ids[row * sizes.top_k + k] - rank * per_rank;
      if (expert < 0 || expert >= per_rank) continue;  // another rank's, or no token in this row
      local[static_cast<std::size_t>(expert)].add(
          sizes, x + row * sizes.hidden, weights[row * sizes.top_k + k], out + row * sizes.hidden);
    }
  }
}

float run_rank(const Sizes& sizes, int rank, const std::string& socket) {
  moe_ep::HostAlltoAll comm(
      {.world_size = sizes.ranks, .rank = rank},
      {.num_experts = sizes.experts,
       .top_k = sizes.top_k,
       .max_tokens_per_rank = sizes.tokens,
       .hidden_size = sizes.hidden,
       .dtype = moe_ep::kFloat32},
      {.comm_backend = std::make_shared<moe_ep::UnixSocketBackend>(socket, rank, sizes.ranks)});

  const int per_rank = sizes.experts / sizes.ranks;
  std::vector<Expert> local;
  for (int expert = 0; expert < per_rank; ++expert) {
    local.emplace_back(sizes, rank * per_rank + expert);
  }
  std::vector<float> tokens = make_tokens(sizes, rank);
  Routing routing = route(sizes, tokens);

  const auto received = comm.dispatch(
      {.hidden_states = {tokens.data(), moe_ep::kFloat32, {sizes.tokens, sizes.hidden}},
       .topk_ids = {routing.ids.data(), moe_ep::kInt32, {sizes.tokens, sizes.top_k}},
       .topk_weights = moe_ep::TensorView(routing.weights.data(), moe_ep::kFloat32,
                                          {sizes.tokens, sizes.top_k})});
  const auto rows = comm.get_combine_input_buffer(moe_ep::kFloat32);
  run_experts(sizes, rank, local, received, static_cast<float*>(rows.data));
  std::vector<float> result(tokens.size());
  comm.combine(rows, {result.data(), moe_ep::kFloat32, {sizes.tokens, sizes.hidden}});

  const std::vector<float> expected = dense_layer(sizes, tokens, routing);
  float error = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    error = std::max(error, std::fabs(result[i] - expected[i]));
  }
  return error;
}

int run_and_report(const Sizes& sizes, int rank, const std::string& socket) {
  try {
    const float error = run_rank(sizes, rank, socket);
    std::printf("rank %d: %d tokens, largest difference from the dense layer %.2g\n", rank,
                sizes.tokens, static_cast<double>(error));
    std::fflush(stdout);
    return error <= kTolerance ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  int* const fields[] = {&sizes.ranks, &sizes.tokens, &sizes.hidden, &sizes.experts, &sizes.top_k};
  for (int arg = 1; arg < argc && arg <= 5; ++arg)
    *fields[arg - 1] = std::atoi(argv[arg]);
  if (sizes.ranks < 1 || sizes.experts < 1 || sizes.experts % sizes.ranks != 0) {
    std::fprintf(stderr, "cpp_ranks: experts must be a multiple of ranks, got %d and %d\n",
                 sizes.experts, sizes.ranks);
    return 2;
  }
  std::string folder = "/tmp/moe_ep_ranks_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 2;

  std::vector<pid_t> children;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run_and_report(sizes, rank, folder + "/socket"));
    children.push_back(child);
  }
  bool ok = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  ::rmdir(folder.c_str());
  std::printf(ok ? "OK: %d ranks match the dense layer\n" : "FAILED on one of %d ranks\n",
              sizes.ranks);
  return ok ? 0 : 1;
}
