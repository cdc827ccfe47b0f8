// Speed of the host kernels beside memcpy of the same bytes, in one run.
//
//   host_kernels [hidden = 7168]
//
// Rows of bfloat16 from pools of different sizes: one that stays in the second-level cache, one that
// stays in the third, one that does not. "x memcpy" compares with copying, row by row, as many rows
// as the kernel reads (for sums) or the row it reads (for encoding); 1.0 is as fast as memory allows.
// Best of several repeats.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "host/kernels.hpp"
#include "protocol/fp8_wire.hpp"

namespace {

using namespace moe_ep;
using host::Codec;
using host::Kernels;

using Bytes = std::vector<std::byte>;

// Seconds per call of `work(token)`, over all tokens.
template <class Work>
double seconds_per_token(std::int64_t tokens, Work&& work) {
  const std::int64_t repeats = std::max<std::int64_t>(1, 4000 / tokens);
  double best = 1e9;
  for (int attempt = 0; attempt < 7; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      for (std::int64_t token = 0; token < tokens; ++token) work(token);
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / static_cast<double>(repeats * tokens));
  }
  return best;
}

void report(const char* what, int num_rows, double seconds, double copy_seconds, double bytes) {
  std::printf("  %-14s %2d rows  %8.2f us  %7.2f GB/s  %5.2f x memcpy\n", what, num_rows,
              seconds * 1e6, bytes / seconds * 1e-9, seconds / copy_seconds);
}

void measure(const Kernels& table, std::int64_t hidden, std::int64_t tokens) {
  const std::int64_t row_bytes = 2 * hidden;
  const std::int64_t wire_bytes = protocol::fp8_wire_row_bytes(hidden);
  std::printf("%s, %lld tokens, a pool of %.1f MB per row\n", table.name,
              static_cast<long long>(tokens), static_cast<double>(tokens * row_bytes) * 1e-6);
  for (const int num_rows : {1, 2, 3, 4, 8}) {
    std::vector<Bytes> pools(static_cast<std::size_t>(num_rows));
    std::mt19937 random(1);
    for (Bytes& pool : pools) {
      pool.resize(static_cast<std::size_t>(tokens * row_bytes));
      for (std::byte& byte : pool) byte = static_cast<std::byte>(random() & 0xbf);
    }
    Bytes out(static_cast<std::size_t>(tokens * row_bytes));
    const auto row = [&](int r, std::int64_t token) {
      return pools[static_cast<std::size_t>(r)].data() + token * row_bytes;
    };
    const double copies = seconds_per_token(tokens, [&](std::int64_t token) {
      for (int r = 0; r < num_rows; ++r) {
        table.copy(out.data() + token * row_bytes, row(r, token),
                   static_cast<std::size_t>(row_bytes));
      }
    });
    report("memcpy", num_rows, copies, copies, static_cast<double>(num_rows * row_bytes));
    const double sums = seconds_per_token(tokens, [&](std::int64_t token) {
      const std::byte* rows[host::kMaxSumRows];
      for (int r = 0; r < num_rows; ++r) rows[r] = row(r, token);
      table.sum_rows(Codec::kBf16, rows, num_rows, hidden, Codec::kBf16,
                     out.data() + token * row_bytes);
    });
    report("sum", num_rows, sums, copies, static_cast<double>(num_rows * row_bytes));
    double encodes = seconds_per_token(tokens, [&](std::int64_t token) {
      for (int r = 0; r < num_rows; ++r) {
        table.fp8_encode_row(Codec::kBf16, row(r, token), hidden, out.data() + token * row_bytes);
      }
    });
    report("fp8 encode", num_rows, encodes, copies, static_cast<double>(num_rows * row_bytes));
    Bytes wire(static_cast<std::size_t>(wire_bytes));
    for (int r = 0; r < num_rows; ++r) {  // the pools now hold wire rows
      for (std::int64_t token = 0; token < tokens; ++token) {
        table.fp8_encode_row(Codec::kBf16, row(r, token), hidden, wire.data());
        std::memcpy(row(r, token), wire.data(), wire.size());
      }
    }
    const double fp8_sums = seconds_per_token(tokens, [&](std::int64_t token) {
      const std::byte* rows[host::kMaxSumRows];
      for (int r = 0; r < num_rows; ++r) rows[r] = row(r, token);
      table.fp8_sum_rows(rows, num_rows, hidden, Codec::kBf16, out.data() + token * row_bytes);
    });
    report("fp8 sum", num_rows, fp8_sums, copies, static_cast<double>(num_rows * wire_bytes));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t hidden = argc > 1 ? std::atoll(argv[1]) : 7168;
  if (hidden < 1) return 2;
  for (const std::int64_t tokens : {4, 128, 2048}) {
    measure(host::generic_kernels(), hidden, tokens);
    if (host::avx2_kernels() != nullptr) measure(*host::avx2_kernels(), hidden, tokens);
  }
  return 0;
}
