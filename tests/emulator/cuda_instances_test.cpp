// NVLinkOneSidedAlltoAll beyond what all backends have in common: steps that are only enqueued.
#include "cuda_instances.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, CudaInstancesTest, ::testing::Values(&kCudaFence, &kCudaLamport),
                         [](const auto& made) { return std::string(made.param->name()); });

// Both have one group and the same layout.
TEST_P(CudaInstancesTest, InstancesOfOtherDevicesDoNotShareAWorkspace) {
  const GroupStep step = random_step(2, 2, 4, 2, 16, 4);
  const HostSuiteBackend host("host", RankKind::kThreads);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto on_host = make(host, rank, comm, step);
    const auto on_gpu = make(backend(), rank, comm, step);
    const int own = backend().device().index;
    MOE_EP_CUDA_CHECK(cudaSetDevice(own ^ 1));
    const auto on_other = make(backend(), rank, comm, step);
    check(on_other->device().index != own, "the same device");
    check(on_host->slice() != on_gpu->slice(), "a GPU's instance has the host's memory");
    check(on_gpu->slice() != on_other->slice(), "an instance has another GPU's memory");
  });
}

// A call enqueues; what becomes of the step shows in the next call, check() or synchronize().
TEST_P(CudaInstancesTest, FailuresOfEnqueuedStepsAreRaisedByLaterCalls) {
  const GroupStep step = random_step(3, 2, 4, 2, 16, 4);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto instance = make(backend(), rank, comm, step, 1);
    for (int way = 0; way < 3; ++way) {
      if (rank == 0) {
        StepRunner runner(backend(), *instance, step);
        runner.send();
        instance->check();  // nothing has failed yet
        if (way == 0) {
          EXPECT_THROW(instance->synchronize(), MoEEpTimeoutError);
        } else {
          backend().wait();
          if (way == 1) {
            EXPECT_THROW(instance->check(), MoEEpTimeoutError);
          } else {
            EXPECT_THROW(runner.combine(), MoEEpTimeoutError);
          }
        }
        EXPECT_THROW(runner.send(), MoEEpError);
      }
      instance->recover({0, 1}, comm);
      run_step(backend(), *instance, step);
    }
  });
}

// Its time-out of an hour is not waited for.
TEST_P(CudaInstancesTest, DestroyEndsAnOpenRoundAtOnce) {
  const GroupStep step = random_step(4, 2, 4, 2, 16, 4);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    auto instance = make(backend(), rank, comm, step, 3600);
    run_step(backend(), *instance, step);
    StepRunner runner(backend(), *instance, step);
    if (rank == 0) runner.send();
    instance->destroy();
    backend().wait();
    comm->barrier();
  });
}

TEST_P(CudaInstancesTest, EnqueuedStepsOfADestroyedInstanceKeepItsDefaultMask) {
  const GroupStep step = random_step(5, 2, 4, 2, 16, 4);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto stays = make(backend(), rank, comm, step);
    for (int round = 0; round < 5; ++round) {
      auto goes = make(backend(), rank, comm, step);
      check(stays->slice() == goes->slice(), "equal layouts do not share a workspace");
      StepRunner runner(backend(), *goes, step);
      runner.send();
      goes->destroy();
      goes.reset();
      run_step(backend(), *stays, step);
    }
  });
}

TEST_P(CudaInstancesTest, StepsGoOnAfterACheckpoint) {
  const GroupStep step = random_step(6, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto instance = make(backend(), rank, comm, step);
    std::byte* const slice = instance->slice();
    for (int round = 0; round < 3; ++round) {
      run_step(backend(), *instance, step);
      instance->checkpoint_prepare();
      EXPECT_THROW(StepRunner(backend(), *instance, step).send(), std::logic_error);
      instance->checkpoint_restore(comm->split(0, rank));
      EXPECT_EQ(instance->slice(), slice);
    }
    run_step(backend(), *instance, step);
  });
}

TEST_P(CudaInstancesTest, RestartedRankRejoins) {
  const GroupStep step = random_step(7, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    auto instance = make(backend(), rank, comm, step);
    run_step(backend(), *instance, step);
    comm->barrier();
    const auto group = comm->split(0, rank);
    if (rank == 1) {
      BootstrapConfig bootstrap{.world_size = 3, .rank = rank};
      bootstrap.stream = reinterpret_cast<std::uintptr_t>(CudaSuiteBackend::stream());
      NVLinkOneSidedConfig config;
      config.timeout_sec = 60;
      config.enable_rank_mask = true;
      config.lamport = backend().configure({}).lamport;
      config.lamport_max_tokens = backend().configure({}).lamport_max_tokens;
      instance = nullptr;
      instance =
          NVLinkOneSidedAlltoAll::rejoin(bootstrap, params_for(step), config, {0, 1, 2}, group);
    } else {
      instance->recover({0, 1, 2}, group);
    }
    for (int round = 0; round < 3; ++round)
      run_step(backend(), *instance, step);
  });
}

// One graph serves every default mask that is set between its replays.
TEST_P(CudaInstancesTest, ReplaysFollowTheDefaultMask) {
  GroupStep step = random_step(8, 3, 6, 3, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto instance = make(backend(), rank, comm, step);
    run_step(backend(), *instance, step);
    const std::int64_t num_tokens = step.num_tokens[static_cast<std::size_t>(rank)];
    Tensor hidden(backend(), kBFloat16, num_tokens, 16);
    Tensor ids(backend(), kInt32, num_tokens, 3);
    ids.fill(std::byte{0});
    Tensor output(backend(), kBFloat16, num_tokens, 16);
    const cudaStream_t stream = CudaSuiteBackend::stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    const auto received = instance->dispatch(
        {.hidden_states = hidden.view(), .topk_ids = ids.view(), .runtime_max_tokens_per_rank = 4});
    instance->combine(instance->get_combine_input_buffer(kBFloat16), output.view());
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (const bool everybody : {true, false, true}) {
      const std::vector<int> ranks = everybody ? std::vector{0, 1, 2} : std::vector{0, 2};
      if (everybody) instance->recover(ranks, comm);  // who was away has missed steps
      if (everybody || rank != 1) {
        instance->set_active_ranks(ranks);
        for (int replay = 0; replay < 3; ++replay)
          cudaGraphLaunch(exec, stream);
        backend().wait();
        instance->check();
        const auto counts = ints_of(backend(), received.recv_counts);
        for (int src = 0; src < 3; ++src) {
          const bool active = everybody || src != 1;
          const auto tokens = step.num_tokens[static_cast<std::size_t>(src)];
          check(counts[static_cast<std::size_t>(src)] == (rank == 0 && active ? tokens : 0),
                "another count of rank " + std::to_string(src));
        }
      }
      comm->barrier();
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

}  // namespace
}  // namespace moe_ep::testing
