// Rows without a token: always marked, never read (FIELD.md, PAD). Every step of this suite fills
// such rows of the expert output with NaNs (FR-046); these tests fill what lies below, too.
#include <moe_ep/plan.hpp>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

// Fills the rows of the workspace, all that lies behind the control regions.
void fill_rows(const SuiteBackend& backend, const MoEEpCommunication& comm, std::byte value) {
  std::int64_t begin = 0;
  for (const WorkspaceRegion& region :
       plan_workspace(comm.bootstrap().world_size, comm.params(), backend.configure({})).regions) {
    if (region.name == "combine") begin = region.offset;
  }
  check(begin > 0, "a plan without a combine region");
  const std::vector<std::byte> bytes(static_cast<std::size_t>(comm.workspace_bytes() - begin),
                                     value);
  backend.upload(comm.slice() + begin, bytes.data(), bytes.size());
}

// FR-045, FR-047.
TEST_P(BackendSuite, RowsWithoutATokenAreMarkedWhateverLayThere) {
  GroupStep step = random_step(1, 3, 6, 4, 20, 6);
  step.num_tokens = {6, 0, 2};
  random_ids(step);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step));
    for (const std::byte value : {std::byte{0x7f}, std::byte{0xff}, std::byte{0x00}}) {
      fill_rows(backend(), *comm, value);
      group->barrier();
      for (const bool in_place : {true, false}) {
        StepOptions options;
        options.in_place = in_place;
        run_step(backend(), *comm, step, options);
      }
      group->barrier();
    }
  });
}

TEST_P(BackendSuite, RowsOfLargerEarlierStepsDoNotShineThrough) {
  std::vector<GroupStep> steps;
  for (const std::int64_t tokens_per_rank : {9, 1, 4, 9, 2, 8}) {
    GroupStep step =
        random_step(20 + static_cast<std::uint64_t>(tokens_per_rank), 3, 6, 3, 20, tokens_per_rank);
    step.num_tokens = {tokens_per_rank == 9 ? 9 : 0, 1, tokens_per_rank == 8 ? 0 : 1};
    random_ids(step, false);
    steps.push_back(step);
  }
  StepOptions in_place;
  in_place.in_place = true;
  run_steps(steps);
  run_steps(steps, in_place);
}

}  // namespace
}  // namespace moe_ep::testing
