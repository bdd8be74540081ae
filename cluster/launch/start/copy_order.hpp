#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "cluster/launch/start/child_start.hpp"

namespace troupe::cluster {

/// What a zygote is told: descriptors alone, which it hands to the copy that it makes. The first is
/// a file without a name that says the rest (order_text).
struct copy_order {
  int text = -1;
  int folder = -1;  ///< The parent's.
  int in = -1, out = -1, err = -1;
  int failure = -1;
  int handed_over = -1;  ///< -1: nothing is.
};

/// The beginning of that file. After it come the words of the command line, the entries of the
/// environment and, if `has_folder`, the working folder, each with a zero behind it.
struct order_text {
  std::uint64_t bytes = 0;  ///< Of what comes after it.
  std::uint32_t arguments = 0;
  std::uint32_t entries = 0;
  bool has_folder = false;
  pid_t parent = 0;
  rlimit limits[RLIM_NLIMITS] = {};
};

/// False, with errno, where no order could be sent.
[[nodiscard]] bool send_order(int socket, const child_start& how);

/// The next order; nothing where the other end has closed. Allocates nothing.
[[nodiscard]] std::optional<copy_order> receive_order(int socket);

/// Closes an order's descriptors.
void close_order(const copy_order& order) noexcept;

}  // namespace troupe::cluster
