#pragma once

#include <string>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::cluster {

/// A pipe that holds the secret and nothing else, for a child process to read once to its end.
/// Errors: io_failed.
[[nodiscard]] result<descriptor> secret_pipe(const messages::cluster_secret& secret);

/// For an order to an agent, and back. Errors: bad_frame.
[[nodiscard]] std::string to_digits(const messages::cluster_secret& secret);
[[nodiscard]] result<messages::cluster_secret> from_digits(const std::string& digits);

/// Overwrite a text, or what is taken from its front, which may be a secret.
void forget(std::string& text) noexcept;
void forget_front(std::string& text, std::size_t count) noexcept;

}  // namespace troupe::cluster
