#include "cluster/membership/outliving/invitation.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "cluster/launch/agents/secret_pipe.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t most_bytes = 4096;

/// Takes a word and the space behind it off the front of a text.
std::string_view take_word(std::string_view& from) {
  const auto end = from.find(' ');
  const auto word = from.substr(0, end);
  from.remove_prefix(end == std::string_view::npos ? from.size() : end + 1);
  return word;
}

bool take_number(std::string_view& from, std::uint8_t& to) {
  const auto word = take_word(from);
  const auto read = std::from_chars(word.data(), word.data() + word.size(), to);
  return read.ec == std::errc() && read.ptr == word.data() + word.size();
}

}  // namespace

result<void> send_invitation(int socket, const invitation& what) {
  auto digits = to_digits(what.secret);
  auto text = std::to_string(what.transport) + " " + std::to_string(what.network) + " " + digits +
              " " + what.trainer;
  const auto sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const int reason = errno;
  const bool is_whole = sent == static_cast<ssize_t>(text.size());
  forget(digits);
  forget(text);
  if (is_whole) return {};
  const bool is_gone = reason == EPIPE || reason == ECONNRESET || reason == ENOTCONN;
  return fail(is_gone ? errc::peer_lost : errc::io_failed,
              std::string("an invitation cannot be sent: ") + std::strerror(reason));
}

result<std::optional<invitation>> receive_invitation(int socket) {
  std::array<char, most_bytes> bytes{};
  ssize_t count = 0;
  do {
    count = ::recv(socket, bytes.data(), bytes.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0)
    return fail(errc::io_failed,
                std::string("no invitation can be received: ") + std::strerror(errno));
  if (count == 0) return std::nullopt;
  std::string text(bytes.data(), static_cast<std::size_t>(count));
  bytes.fill('\0');
  std::string_view left(text);
  invitation out;
  const bool has_numbers = take_number(left, out.transport) && take_number(left, out.network);
  std::string digits(take_word(left));
  out.trainer = left;
  auto secret = from_digits(digits);
  forget(digits);
  forget(text);
  if (!has_numbers || !secret || out.trainer.empty())
    return fail(errc::bad_frame, "what was received is no invitation");
  out.secret = std::move(*secret);
  return out;
}

}  // namespace troupe::cluster
