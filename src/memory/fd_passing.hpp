// Hands file descriptors from every rank to every rank (SCM_RIGHTS over Unix sockets). Needs
// neither ptrace rights nor pidfd, so it works in default containers, and no common process ids.
//
// Every rank listens at a name that nobody can guess, in a directory that all ranks see:
// $MOE_EP_RENDEZVOUS_DIR, else $XDG_RUNTIME_DIR, else /tmp. Names and 128-bit tokens travel through
// the group's own CommBackend. Each rank then connects to each other one, shows that rank's token
// and gets its descriptor. Sockets have mode 0600, both ends check the other's user.
#pragma once

#include <vector>

#include <moe_ep/comm_backend.hpp>

#include "comm/unique_fd.hpp"

namespace moe_ep::memory {

// Collective. Entry r of the result is this process's own descriptor of what rank r passed, close
// on exec; so is the own entry. The caller keeps `own_fd`.
//
// Bounded by $MOE_EP_RENDEZVOUS_TIMEOUT_SEC (60). Ranks may be threads of one process. Leaves
// neither names nor descriptors behind when it fails.
// @throws MoEEpError on every rank if it fails on any, with that rank's reason
std::vector<detail::UniqueFd> exchange_fds(CommBackend& comm, int own_fd);

}  // namespace moe_ep::memory
