#include "cluster/membership/outliving/invitation.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/start/retried.hpp"

namespace troupe::cluster {
namespace {

/// The secret's digits, two for each of its bytes, and all else.
constexpr std::size_t most_bytes = 2 * messages::cluster_secret::most_bytes + 4096;
constexpr const char* mark_of_trainer = ": ";  // behind the address, before why it is not joined

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
  auto text = std::to_string(what.transport) + " " + std::to_string(what.network) + " ";
  text.reserve(most_bytes);  // or it would leave digits behind where it grows
  text.append(digits).append(" ").append(what.trainer);
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
  const auto count = retried([&] { return ::recv(socket, bytes.data(), bytes.size(), 0); });
  if (count == 0) return std::nullopt;
  if (count < 0 && errno == ECONNRESET) return std::nullopt;  // nobody had read what was declined
  if (count < 0)
    return fail(errc::io_failed,
                std::string("no invitation can be received: ") + std::strerror(errno));
  std::string text(bytes.data(), static_cast<std::size_t>(count));
  messages::wipe(std::as_writable_bytes(std::span(bytes)));
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

void decline_invitation(int socket, const std::string& trainer, const std::string& why) {
  const auto text = (trainer + mark_of_trainer + why).substr(0, most_bytes);
  static_cast<void>(::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

std::string why_declined(int socket, const std::string& trainer) {
  const auto begin = trainer + mark_of_trainer;
  std::array<char, most_bytes> bytes{};
  std::string why;
  for (;;) {
    const auto count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return why;
    const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
    if (text.starts_with(begin)) why = text.substr(begin.size());
  }
}

}  // namespace troupe::cluster
