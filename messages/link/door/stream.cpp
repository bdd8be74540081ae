#include "messages/link/door/stream.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::messages::door {
namespace {

/// Descriptors of a stranger that wait to be taken, at most.
constexpr std::size_t most_descriptors = 4;

union control_space {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * most_descriptors)];
};

/// A process that ends with bytes that it has not read resets its connections, and one without
/// closes them: both have ended. `problem`: an errno, or 0 for a connection that was closed.
std::string words_of_end(int problem) {
  const std::string ended = "it has ended the connection";
  if (problem == 0) return ended;
  const std::string said = std::strerror(problem);
  return problem == ECONNRESET || problem == EPIPE ? ended + " (" + said + ")" : said;
}

}  // namespace

std::byte* stream::room_for(std::size_t bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ + bytes > out_.size()) {
    if (begin_ > 0) std::memmove(out_.data(), out_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    if (end_ + bytes > out_.size()) out_.resize(std::max(end_ + bytes, 2 * out_.size()));
  }
  return out_.data() + end_;
}

std::ptrdiff_t stream::write_some() {
  std::size_t most = end_ - begin_;
  iovec piece{out_.data() + begin_, most};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  control_space control{};
  if (!handed_.empty() && handed_.front().at > written_) {
    piece.iov_len = std::min<std::size_t>(most, handed_.front().at - written_);
  } else if (!handed_.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &handed_.front().descriptor, sizeof(int));
  }
  const auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (sent > 0 && message.msg_control != nullptr) handed_.pop_front();
  return sent;
}

stream::news stream::flush() {
  bool any = false;
  while (begin_ != end_) {
    const auto sent = write_some();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) {
      problem_ = words_of_end(errno);
      return news::over;
    }
    begin_ += static_cast<std::size_t>(sent);
    written_ += static_cast<std::uint64_t>(sent);
    any = true;
  }
  return any ? news::some : news::nothing;
}

std::ptrdiff_t stream::read_some(std::span<std::byte> into) {
  iovec piece{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  control_space control{};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const auto got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  // A read ends with what a descriptor came with, whatever lies behind.
  took_all_ = static_cast<std::size_t>(got) < into.size() && message.msg_controllen == 0;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
      descriptor owned(one);
      if (received_.size() < most_descriptors) received_.push_back(std::move(owned));
    }
  }
  return got;
}

void stream::expect_much() {
  if (room_ == full_room) return;
  room_ = full_room;
  if (!in_) return;
  auto larger = std::make_unique_for_overwrite<std::byte[]>(room_);
  in_end_ -= in_begin_;
  std::memcpy(larger.get(), in_.get() + std::exchange(in_begin_, 0), in_end_);
  in_ = std::move(larger);
}

stream::news stream::fill() {
  if (!in_) in_ = std::make_unique_for_overwrite<std::byte[]>(room_);
  if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  took_all_ = false;
  if (in_end_ == room_) {
    if (in_begin_ == 0) return news::some;  // it is full: the owner has something to do
    std::memmove(in_.get(), in_.get() + in_begin_, in_end_ - in_begin_);
    in_end_ -= std::exchange(in_begin_, 0);
  }
  std::ptrdiff_t got = 0;
  do {
    got = read_some({in_.get() + in_end_, room_ - in_end_});
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    in_end_ += static_cast<std::size_t>(got);
    return news::some;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return news::nothing;
  problem_ = words_of_end(got == 0 ? 0 : errno);
  return news::over;
}

descriptor stream::take_descriptor() {
  if (received_.empty()) return {};
  descriptor out = std::move(received_.front());
  received_.pop_front();
  return out;
}

}  // namespace troupe::messages::door
