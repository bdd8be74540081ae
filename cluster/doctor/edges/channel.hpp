#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cluster/doctor/facts/facts.hpp"

namespace troupe::cluster::doctor {

/// A way to send bytes to a listener of the doctor's: our own link, or what is below it. One
/// thread.
class channel {
 public:
  channel() = default;
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  virtual ~channel() = default;

  /// So many round trips of 8 bytes, one after another. Errors: timed_out, peer_lost.
  [[nodiscard]] virtual result<void> round_trips(int count) = 0;

  /// Sends so many blocks and returns when the last has arrived. Errors: timed_out, peer_lost.
  [[nodiscard]] virtual result<void> push(std::size_t bytes, int count) = 0;
};

/// Whether messages pass: a few small ones, and then one that fills many packets; `so_far` gets
/// the first result before the second message is sent, for large ones may not pass where small ones
/// do. An error is in the result, whose figures are not to be shown: others may be tried at once.
[[nodiscard]] flow_facts try_out(channel& by, const std::string& name,
                                 const std::function<void(const flow_facts&)>& so_far);

/// Measures round trips and then the rate, each for up to a tenth of a second; `so_far` gets
/// the first before the second begins. An error is in the result.
[[nodiscard]] flow_facts measure(channel& by, const std::string& name,
                                 const std::function<void(const flow_facts&)>& so_far);

}  // namespace troupe::cluster::doctor
