// The caller's floating-point environment, put aside for the length of a step.
//
// Flush-to-zero or another rounding mode on the calling thread (torch.set_flush_denormal does it)
// would change the bits of a sum; a step computes in the default environment.
#pragma once

#include <cfenv>

namespace moe_ep::host {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace moe_ep::host
