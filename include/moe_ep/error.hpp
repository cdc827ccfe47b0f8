/// @file
/// Exceptions. Every message reads `operation: requirement, got value`.
///
/// | exception | when | Python |
/// |---|---|---|
/// | std::invalid_argument | bad argument; nothing was sent | ValueError |
/// | TypeMismatchError (an invalid_argument) | value of a wrong kind | TypeError |
/// | std::out_of_range | unknown registry name | KeyError |
/// | std::logic_error | wrong order of calls, use after destroy | RuntimeError |
/// | MoEEpTimeoutError | peers did not arrive in time | MoEEpTimeoutError |
/// | MoEEpMismatchError | peers sent a step of another shape | MoEEpMismatchError |
/// | MoEEpError | everything else: system calls, unsupported platform | MoEEpError |
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <moe_ep/export.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep {

/// Base of the library's own run-time errors.
class MOE_EP_API MoEEpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bounded wait ended before these ranks arrived. The process stays usable; the instance refuses
/// further steps until `recover`.
class MOE_EP_API MoEEpTimeoutError : public MoEEpError {
 public:
  MoEEpTimeoutError(const std::string& message, std::vector<int> ranks, Phase phase)
      : MoEEpError(message), ranks_(std::move(ranks)), phase_(phase) {}

  /// The ranks that did not arrive, ascending.
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  /// What the step was doing.
  Phase phase() const noexcept { return phase_; }

 private:
  std::vector<int> ranks_;
  Phase phase_;
};

/// Ranks disagree about the shape of a step. The message names field, ranks and values.
class MOE_EP_API MoEEpMismatchError : public MoEEpError {
 public:
  using MoEEpError::MoEEpError;
};

/// An argument of the wrong kind (TypeError in Python).
class MOE_EP_API TypeMismatchError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace moe_ep
