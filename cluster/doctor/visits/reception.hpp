#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cluster/doctor/visits/node_visit.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::cluster::doctor {

struct reception_settings {
  messages::link_options link;
  std::string listen;              ///< Where the run's trainer would: see make_link.
  std::vector<std::string> names;  ///< As which processes may come.
  trainer_program own;             ///< What they have to run.
  std::chrono::milliseconds patience{0};
};

/// Where the doctor is met by processes that somebody else starts to join the run, in its trainer's
/// place. One that joins is turned away with the word that the doctor is here (doctor_is_here), and
/// comes again as a guest that the doctor may ask to be examined (see serve_doctor). It also
/// answers link_channels. Who is missing is logged meanwhile. A resource, which outlives its
/// visits; `await` may be called from any thread.
class reception {
 public:
  /// Errors: those of the link.
  [[nodiscard]] static result<std::unique_ptr<reception>> open(reception_settings settings);
  reception(const reception&) = delete;
  reception& operator=(const reception&) = delete;
  ~reception();

  [[nodiscard]] const std::string& address() const noexcept;

  /// Waits until the process of this name has come, and visits it. Once a name. Errors: timed_out
  /// with what to do, once `patience` has passed since `open`.
  [[nodiscard]] result<std::unique_ptr<node_visit>> await(const std::string& name);

 private:
  struct state;
  explicit reception(std::unique_ptr<state> of);

  const std::unique_ptr<state> state_;
};

}  // namespace troupe::cluster::doctor
