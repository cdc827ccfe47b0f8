// MpiBackend. A program for mpiexec: it has no GoogleTest, whose assertions know no ranks. Prints
// what went wrong and ends with a status other than 0.
#include <moe_ep/mpi.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

int failures = 0;

void expect(bool ok, const char* what, int rank) {
  if (ok) return;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
  ++failures;
}

std::string message_of(int rank, std::size_t bytes) {
  return std::string(bytes, static_cast<char>('a' + rank));
}

// The contract of CommBackend, with `max_count` bytes a call at most.
void run(MPI_Comm world, int max_count) {
  moe_ep::MpiBackend comm(world, max_count);
  const int rank = comm.get_rank();
  const int size = comm.get_size();
  for (const std::size_t bytes : {0, 1, 100, 300}) {
    const auto length = [&](int src) { return bytes * static_cast<std::size_t>(src + 1); };
    const auto all = comm.allgather(message_of(rank, length(rank)));
    expect(all.size() == static_cast<std::size_t>(size), "allgather returns one entry a rank",
           rank);
    for (int src = 0; src < size; ++src) {
      expect(all[static_cast<std::size_t>(src)] == message_of(src, length(src)),
             "allgather returns the messages in rank order", rank);
      expect(comm.bcast(message_of(rank, length(rank)), src) == message_of(src, length(src)),
             "bcast returns the root's message", rank);
    }
  }
  comm.barrier();

  const auto reversed = comm.split(0, -rank);
  expect(reversed->get_rank() == size - 1 - rank, "split orders by key", rank);
  expect(reversed->identity() != comm.identity(), "a sub-group is another group", rank);
  const auto half = comm.split(rank % 2, rank);
  expect(half->get_size() == (size + 1 - rank % 2) / 2, "split groups by color", rank);
  expect(half->bcast(std::to_string(rank), 0) == std::to_string(rank % 2), "sub-groups work", rank);

  const moe_ep::MpiBackend again(world);
  expect(again.identity() == comm.identity(), "one communicator, one identity", rank);
}

template <class Error, class Call>
bool throws(Call&& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void run_failures(MPI_Comm world) {
  moe_ep::MpiBackend comm(world);
  const int rank = comm.get_rank();
  expect(throws<std::invalid_argument>([&] { comm.bcast("x", comm.get_size()); }),
         "bcast refuses a root outside the group", rank);
  expect(throws<std::invalid_argument>([&] { moe_ep::MpiBackend(world, 0); }),
         "max_count must hold a byte a rank", rank);
  // MPI's own errors; the default handler would end the program.
  expect(throws<moe_ep::MoEEpError>([&] { comm.split(-7, 0); }), "MPI errors are thrown", rank);
  MPI_Errhandler handler;
  MPI_Comm_get_errhandler(world, &handler);
  expect(handler == MPI_ERRORS_ARE_FATAL, "the communicator's error handler is put back", rank);
  MPI_Errhandler_free(&handler);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  for (const int max_count : {INT_MAX, 64})
    run(MPI_COMM_WORLD, max_count);
  run_failures(MPI_COMM_WORLD);
  int total = 0;
  MPI_Allreduce(&failures, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return total == 0 ? 0 : 1;
}
