#include <moe_ep/comm_backend.hpp>

namespace moe_ep {

// Out of line: the one translation unit that holds the class's type information.
CommBackend::~CommBackend() = default;

}  // namespace moe_ep
