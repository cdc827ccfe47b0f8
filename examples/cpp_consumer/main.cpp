// The smallest program that uses the library: two ranks as threads, one token each way.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include <moe_ep/moe_ep.hpp>

namespace {

void run_rank(moe_ep::LocalGroup& group, int rank) {
  // Expert 0 lives on rank 0, expert 1 on rank 1. Every rank sends its token to both.
  moe_ep::HostAlltoAll comm({.world_size = group.size(), .rank = rank},
                            {.num_experts = 2,
                             .top_k = 2,
                             .max_tokens_per_rank = 1,
                             .hidden_size = 4,
                             .dtype = moe_ep::kFloat32},
                            {.comm_backend = group.backend(rank)});

  std::vector<float> token(4, static_cast<float>(rank + 1));
  std::vector<int> ids{0, 1};
  const auto received = comm.dispatch({.hidden_states = {token.data(), moe_ep::kFloat32, {1, 4}},
                                       .topk_ids = {ids.data(), moe_ep::kInt32, {1, 2}}});

  // This rank's expert multiplies by 10 on rank 0, by 100 on rank 1, in place.
  const auto rows = comm.get_combine_input_buffer(moe_ep::kFloat32);
  const auto* in = static_cast<const float*>(received.hidden_states.data);
  auto* out = static_cast<float*>(rows.data);
  for (std::int64_t i = 0; i < rows.numel(); ++i)
    out[i] = in[i] * (rank == 0 ? 10.0f : 100.0f);

  std::vector<float> result(4);
  comm.combine(rows, {result.data(), moe_ep::kFloat32, {1, 4}});
  std::printf("rank %d: %.0f -> %.0f\n", rank, token[0], result[0]);
  if (result[0] != token[0] * 110.0f) std::exit(1);
}

}  // namespace

int main() {
  moe_ep::LocalGroup group(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.emplace_back([&group, rank] {
      try {
        run_rank(group, rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::exit(1);
      }
    });
  }
  for (std::thread& thread : ranks)
    thread.join();
  std::printf("moe_ep %s\n", MOE_EP_VERSION_STRING);
}
