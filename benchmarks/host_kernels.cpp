// Speed of the host kernels beside copying the same bytes, in one run.
//
//   host_kernels [hidden = 7168]
//
// Rows of bfloat16 from pools of three sizes: one that fits a second-level cache, one for the third
// level, one for neither. "x copy" compares with copying, row by row with the table's own copy, as
// many rows as the kernel reads. GB/s count bytes read. Best of several repeats; wire rows are
// about half as long as the rows they stand for. Time is the thread's CPU time, which other
// programs disturb less than the clock.
#include <time.h>

#include <algorithm>
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

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Seconds per call of `work(token)`, over all tokens.
template <class Work>
double seconds_per_token(std::int64_t tokens, Work&& work) {
  const std::int64_t repeats = std::max<std::int64_t>(1, 500 / tokens);
  double best = 1e9;
  for (int attempt = 0; attempt < 15; ++attempt) {
    const double start = cpu_seconds();
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      for (std::int64_t token = 0; token < tokens; ++token)
        work(token);
    }
    best = std::min(best, (cpu_seconds() - start) / static_cast<double>(repeats * tokens));
  }
  return best;
}

void report(const char* what, int num_rows, double seconds, double copy_seconds, double bytes) {
  std::printf("  %-14s %2d rows  %8.2f us  %7.2f GB/s  %5.2f x copy\n", what, num_rows,
              seconds * 1e6, bytes / seconds * 1e-9, seconds / copy_seconds);
}

void measure(const Kernels& table, std::int64_t hidden, std::int64_t tokens) {
  const std::int64_t row_bytes = 2 * hidden;
  const std::int64_t wire_bytes = protocol::fp8_wire_row_bytes(hidden);
  std::printf("%s, %lld tokens, a pool of %.1f MB per row\n", table.name,
              static_cast<long long>(tokens), static_cast<double>(tokens * row_bytes) * 1e-6);
  for (const int num_rows : {1, 2, 3, 4, 8}) {
    std::vector<Bytes> pools(static_cast<std::size_t>(num_rows));
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-3.0f, 3.0f);
    for (Bytes& pool : pools) {
      pool.resize(static_cast<std::size_t>(tokens * row_bytes));
      for (std::int64_t i = 0; i < tokens * hidden; ++i) {
        const auto bits = protocol::Bf16::from_float(uniform(random));
        std::memcpy(pool.data() + 2 * i, &bits, sizeof bits);
      }
    }
    Bytes out(static_cast<std::size_t>(tokens * row_bytes));
    const auto row = [&](int r, std::int64_t token) {
      return pools[static_cast<std::size_t>(r)].data() + token * row_bytes;
    };
    const auto time_copies = [&](auto copy) {
      return seconds_per_token(tokens, [&](std::int64_t token) {
        for (int r = 0; r < num_rows; ++r) {
          copy(out.data() + token * row_bytes, row(r, token), static_cast<std::size_t>(row_bytes));
        }
      });
    };
    const auto all_rows = static_cast<double>(num_rows * row_bytes);
    const double copies = time_copies(table.copy);
    report("copy", num_rows, copies, copies, all_rows);
    report("copy streaming", num_rows, time_copies(table.copy_streaming), copies, all_rows);
    report("memcpy", num_rows, time_copies(std::memcpy), copies, all_rows);
    const double sums = seconds_per_token(tokens, [&](std::int64_t token) {
      const std::byte* rows[host::kMaxSumRows];
      for (int r = 0; r < num_rows; ++r)
        rows[r] = row(r, token);
      table.sum_rows(Codec::kBf16, rows, num_rows, hidden, Codec::kBf16,
                     out.data() + token * row_bytes);
    });
    report("sum", num_rows, sums, copies, all_rows);
    const double encodes = seconds_per_token(tokens, [&](std::int64_t token) {
      for (int r = 0; r < num_rows; ++r) {
        table.fp8_encode_row(Codec::kBf16, row(r, token), hidden, out.data() + token * row_bytes);
      }
    });
    report("fp8 encode", num_rows, encodes, copies, all_rows);
    Bytes wire(static_cast<std::size_t>(wire_bytes));
    for (int r = 0; r < num_rows; ++r) {  // the pools now hold wire rows
      for (std::int64_t token = 0; token < tokens; ++token) {
        table.fp8_encode_row(Codec::kBf16, row(r, token), hidden, wire.data());
        std::memcpy(row(r, token), wire.data(), wire.size());
      }
    }
    const double fp8_sums = seconds_per_token(tokens, [&](std::int64_t token) {
      const std::byte* rows[host::kMaxSumRows];
      for (int r = 0; r < num_rows; ++r)
        rows[r] = row(r, token);
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
    if (host::avx2_kernels() != nullptr) measure(*host::avx2_kernels(), hidden, tokens);
    if (tokens == 4) measure(host::generic_kernels(), hidden, tokens);
  }
  return 0;
}
