#pragma once

#include <filesystem>

#include "messages/base/error.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::cluster {

/// Reads a cluster's secret from a file that only its owner may touch; spaces and line ends at its
/// end do not count. Errors: bad_config naming the file and what to do, never what is in it.
[[nodiscard]] result<messages::cluster_secret> read_secret_file(const std::filesystem::path& file);

/// Reads a secret that a parent process left in an inherited descriptor, and closes that. Errors:
/// bad_config.
[[nodiscard]] result<messages::cluster_secret> read_inherited_secret(int descriptor);

}  // namespace troupe::cluster
