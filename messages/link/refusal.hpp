#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::messages {

/// Why a connection was not admitted.
enum class refusal : std::uint8_t {
  malformed,     ///< Not a handshake of ours at all.
  version,       ///< Another wire or protocol version.
  wrong_secret,  ///< A proof that does not hold: another secret, or a proof of another handshake.
  reflected,     ///< Our own share or proof came back.
  out_of_order,  ///< A message that is not due, or anything else before the handshake is done.
  too_slow,      ///< Not done in time.
  too_many,      ///< Too many handshakes are open.
  by_peer,       ///< The other side refused us.
  other_user,    ///< Another user of this machine, or one it has no number for.
};
inline constexpr std::size_t refusal_kinds = 9;

/// The rest of a sentence that begins with the peer's name: "did not finish its handshake in time".
[[nodiscard]] std::string_view describe(refusal why) noexcept;

}  // namespace troupe::messages
