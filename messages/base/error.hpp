#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace troupe {

/// What kind of expected failure happened. `describe` has one sentence for each. 0 is no failure.
enum class errc : std::uint8_t {
  bad_config = 1,       ///< A flag, key or value that the user gave is wrong.
  bad_data,             ///< A data, weight or image file is missing, truncated or malformed.
  bad_frame,            ///< Bytes from a peer break the protocol or one of its limits.
  version_mismatch,     ///< A peer speaks another protocol version.
  address_unavailable,  ///< An address cannot be resolved, bound or reached.
  transport_missing,    ///< UCX lacks the transport that was asked for.
  peer_lost,            ///< A peer's process died, hung or closed its link.
  unknown_target,       ///< No actor of that name or id lives there.
  unknown_message,      ///< No codec or handler for that message type.
  timed_out,            ///< A deadline passed.
  cancelled,            ///< The run is ending, or the caller gave the request up.
  stale,                ///< The message belongs to an epoch or step that is over.
  handler_failed,       ///< A handler, or the arithmetic it started, threw.
  io_failed,            ///< The operating system refused an operation.
  not_admitted,         ///< A peer's handshake failed, or it refused ours.
};

/// One sentence for each code.
[[nodiscard]] std::string_view describe(errc code) noexcept;

/// An expected failure. `text` is one line for the user: what failed, where, and what to do.
struct error {
  errc code = errc::io_failed;
  std::string text;

  bool operator==(const error&) const = default;
};

template <class T>
using result = tl::expected<T, error>;

[[nodiscard]] inline tl::unexpected<error> fail(errc code, std::string text) {
  return tl::unexpected<error>(error{code, std::move(text)});
}

/// The same error, with what it concerns: "stage-0: no plan of that number".
[[nodiscard]] error error_about(const std::string& what, const error& why);

}  // namespace troupe
