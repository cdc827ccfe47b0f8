// What orders the words of Lamport steps on hosts: every tag releases and acquires.
#pragma once

#include "protocol/transport/lamport_combine.hpp"
#include "support/fake_group.hpp"

namespace moe_ep::testing::simulation {

template <class Rules = protocol::LamportRules>
struct HostScheme {
  // After the protocol's own reset: nothing is left to do.
  static void reset(const protocol::Workspace&, protocol::Epoch) {}

  template <class Memory>
  static protocol::StepStatus dispatch(Memory& memory, const protocol::DispatchParams& params) {
    FakeCoop coop;
    protocol::StepStatus shared;
    return protocol::lamport_dispatch<Rules>(coop, memory, params, shared);
  }
  template <class Memory, class Rows>
  static protocol::StepStatus combine(Memory& memory, Rows& rows,
                                      const protocol::CombineParams& params) {
    FakeCoop coop;
    protocol::StepStatus shared;
    return protocol::lamport_combine<Rules>(coop, memory, rows, params, shared);
  }
  // Before a fence dispatch that follows a Lamport step: the combine tags have said it all.
  template <class Memory>
  static protocol::StepStatus drain(Memory&, const protocol::DispatchParams&) {
    return {};
  }
};

}  // namespace moe_ep::testing::simulation
