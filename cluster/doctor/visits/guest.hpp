#pragma once

#include <string>

#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster::doctor {

/// A process that somebody has started to join a run.
struct guest_settings {
  std::string name;     ///< "stage-1"
  std::string address;  ///< At which it was to join, "host:port".
  std::string listen;   ///< As of node_options::listen.
  process_link link;
};

/// Whether a process could not join because the doctor listens there, in the trainer's place.
[[nodiscard]] bool has_met_doctor(const error& why);

/// Serves the doctor at that address until it has examined this machine: starts a process of this
/// program for each of its requests, as an agent does, and ends all of them. Errors: those of
/// connecting; bad_config where the doctor refuses it; peer_lost where it is gone before it is
/// done; io_failed.
[[nodiscard]] result<void> serve_doctor(const guest_settings& as);

}  // namespace troupe::cluster::doctor
