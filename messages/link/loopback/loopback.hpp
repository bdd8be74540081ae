#pragma once

#include <memory>

#include "messages/codec/limits.hpp"
#include "messages/link/link.hpp"

namespace troupe::messages {

/// A network inside one process: the addresses that its links listen at. A value to be wired by
/// whoever makes the links; copies are the same network. Any thread.
class loopback_network {
 public:
  loopback_network();

  class state;

 private:
  friend result<std::unique_ptr<link>> make_loopback_link(const loopback_network&, link_events,
                                                          limits);
  std::shared_ptr<state> state_;
};

/// A link between threads of one process, with the contract of a real one: each frame's header is
/// encoded and decoded, limits hold, control overtakes data, peers die with their link. Tensors go
/// by reference. A thread of its own delivers.
[[nodiscard]] result<std::unique_ptr<link>> make_loopback_link(const loopback_network& network,
                                                               link_events events,
                                                               limits bounds = {});

}  // namespace troupe::messages
