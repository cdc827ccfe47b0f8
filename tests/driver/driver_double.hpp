// A double of the CUDA driver's virtual memory management, for ranks that are threads of a process.
//
// Physical memory is a memfd, reserved addresses are inaccessible pages, a mapping is one of the
// memfd over them: what one rank writes into a slice the others read. Misuse (mapping over a
// mapping, freeing addresses with a mapping in them, an unknown handle) is refused as by the
// driver.
//
// A plan says what is refused. Calls that give something back (cuMemRelease, cuMemUnmap,
// cuMemAddressFree) and look-ups of texts and entry points are never refused and not counted: no
// program can make good for them.
#pragma once

#include <map>
#include <ostream>
#include <string>

namespace moe_ep::testing {

enum class Fabric {
  kWorks,
  kNoAttribute,   // the GPU has no such handles
  kNotPermitted,  // the attribute says yes, cuMemCreate no: there is no IMEX channel
  kNoExport,      // memory can be made, and not named
};

struct DriverPlan {
  Fabric fabric = Fabric::kNoAttribute;
  std::map<int, Fabric> fabric_of{};  // where a rank differs
  int failing_rank = -1;
  int failing_call = 0;  // which one of the failing rank's is refused, from 1
};

// From here on. Counts start anew.
void follow(const DriverPlan& plan);

// The calling thread is this rank.
void play(int rank);

// The call that was refused, e.g. "cuMemMap"; empty if there was none.
std::string refused_call();

// The driver has no such function (for those who have not looked yet).
void hide_entry_point(const std::string& name);

// What is held of the driver in the whole process. Must be equal before and after.
struct Held {
  int ranges = 0;    // reserved
  int mappings = 0;  // into them
  int handles = 0;
  int slices = 0;         // physical memory
  int fabric_slices = 0;  // those of them that were made to be named so

  static Held now();
  friend bool operator==(const Held&, const Held&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Held& held);
};

// For the double itself: whether the plan refuses this call of the calling rank.
bool is_refused(const char* call);
// How the calling rank's GPU answers when asked for fabric handles.
Fabric fabric_here();

}  // namespace moe_ep::testing
