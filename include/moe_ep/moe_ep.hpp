/// @file
/// Everything public. Start with communication.hpp (classes) or a2a.hpp (stateless functions).
#pragma once

#include <moe_ep/a2a.hpp>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/communication.hpp>
#include <moe_ep/config.hpp>
#include <moe_ep/error.hpp>
#include <moe_ep/host.hpp>
#include <moe_ep/inspect.hpp>
#include <moe_ep/log.hpp>
#include <moe_ep/nvlink.hpp>
#include <moe_ep/plan.hpp>
#include <moe_ep/rank_mask.hpp>
#include <moe_ep/stats.hpp>
#include <moe_ep/tensor.hpp>
#include <moe_ep/types.hpp>
#include <moe_ep/version.hpp>
#include <moe_ep/workspace.hpp>
