#include "messages/base/error.hpp"

namespace troupe {

std::string_view describe(errc code) noexcept {
  switch (code) {
    case errc::bad_config:
      return "the configuration is wrong";
    case errc::bad_data:
      return "a file is missing, truncated or malformed";
    case errc::bad_frame:
      return "a peer broke the protocol";
    case errc::version_mismatch:
      return "a peer speaks another protocol version";
    case errc::address_unavailable:
      return "an address cannot be bound or reached";
    case errc::transport_missing:
      return "UCX lacks the transport that was asked for";
    case errc::peer_lost:
      return "a peer is gone";
    case errc::unknown_target:
      return "no such actor";
    case errc::unknown_message:
      return "nobody handles that message type";
    case errc::timed_out:
      return "a deadline passed";
    case errc::cancelled:
      return "the request was cancelled";
    case errc::stale:
      return "the message belongs to a step that is over";
    case errc::handler_failed:
      return "a handler failed";
    case errc::io_failed:
      return "the operating system refused an operation";
    case errc::not_admitted:
      return "a handshake between peers failed";
  }
  return "unknown error";
}

error error_about(const std::string& what, const error& why) {
  return {why.code, what + ": " + why.text};
}

}  // namespace troupe
